"""The extension point of preprocessing: what runs for every request, in the configured order."""

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import ClassVar, Final, NamedTuple, TypeVar, cast

import msgspec
from pydantic import JsonValue

from pointsman_apis.requests import StructuredBody
from pointsman_contracts import agent, identity
from pointsman_contracts.content import PromptEnd, PromptTokens
from pointsman_contracts.journey import BodyEdit, HeaderEdit, PreprocessRequest
from pointsman_contracts.limits import LimitAsk, LimitVerdict
from pointsman_core.config import Config
from pointsman_core.plugins import Key, PluginError
from pointsman_plugins.plugin import ParamsT_co, Plugin
from pointsman_plugins.prompt import Prompt, prompt_of

T = TypeVar("T")

IDENTITY: Key[dict[str, JsonValue]] = Key(identity.IDENTITY, dict[str, JsonValue])
"""The sender of the request, as established by authentication."""

AGENT: Key[dict[str, JsonValue]] = Key(agent.AGENT, dict[str, JsonValue])
"""The program that sent the request, as its headers or its body name it."""
ENGINE_SALT: Key[bool] = Key("engine_salt", bool)
"""True when the `cache_salt` that the engine gets stands for the tenant too."""


class HeaderFacts(msgspec.Struct, gc=False):
    """The facts that follow from the headers."""

    readable: dict[str, str]
    """Without credentials and cookies, within limits of size."""
    dropped: int = 0
    """Headers left out because they were too long."""
    session: str | None = None
    priority: int = 0
    objective: str | None = None
    """Name that stands for a priority; None without one, or when the request names the priority itself."""
    fairness_id: str = ""
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    subset: tuple[str, ...] | None = None
    workers: tuple[str, ...] | None = None
    names_agent: bool = False
    """Whether a known agent's own header is among them."""
    hinted_priority: str | None = None
    """The priority that the client wishes for, as it wrote it."""


class ProcessorVerdict(msgspec.Struct, frozen=True, gc=False):
    """The result of one processor, for the decision's trail."""

    processor: str
    """Its instance name."""
    outcome: str
    """See `StageReport.outcome`."""
    took_ms: float
    note: str | None


class ProcessorFailure(NamedTuple):
    """A processor that couldn't do its work, where the request went on all the same."""

    processor: str
    error: Exception


class Answered(NamedTuple):
    """The question of a limit, and the verdict about it."""

    ask: LimitAsk
    verdict: LimitVerdict


class Unavailable(Exception):
    """A processor can't work now because a peer doesn't answer. The text is for operators."""


class Ports:
    """A processor's access to things beyond the request, by type. `main` makes it once; a pipeline that runs alone has
    none."""

    def __init__(self, *ports: object) -> None:
        self._ports: Final = ports

    def find(self, kind: type[T]) -> T | None:
        return next((port for port in self._ports if isinstance(port, kind)), None)


class Incoming(msgspec.Struct, eq=False):
    """A request in preprocessing: its content as it arrived, and the results of the processors."""

    envelope: PreprocessRequest
    body: StructuredBody
    headers: HeaderFacts
    attributes: dict[str, JsonValue] = {}
    """Attributes by the name of their key; use `read` and `write`."""
    header_edits: dict[str, HeaderEdit] = {}
    body_edits: dict[str, BodyEdit] = {}
    answer_headers: dict[str, HeaderEdit] = {}
    """Edits to the response's headers, for errors too; lower-case names."""
    charges: list[LimitAsk] = []
    answered: dict[str, Answered] = {}
    """Answers for limits whose turn is still to come, by name: asked for with the question of a limit before them."""
    credentials: Sequence[str] = ()
    """Headers in which authentication in enforce mode looks for a credential."""
    declared: frozenset[str] | None = None
    """Names of the attributes that the configured processors declare; None where one runs alone."""
    measured: Prompt | None = None
    """The prompt as `measure` found it; read `prompt`."""
    rule: str | None = None
    """The rewrite that was for the model asked for."""
    tokens: PromptTokens | None = None
    """The prompt's tokens, for the edge."""
    end: PromptEnd | None = None
    """The prompt's end, for the edge."""
    note: str | None = None
    """The note of the processor that runs; set it with `say`."""
    verdicts: list[ProcessorVerdict] = []
    failures: list[ProcessorFailure] = []
    degraded: list[str] = []
    """Why the decision isn't made as configured."""
    shadow: dict[str, JsonValue] = {}
    """Attributes that processors in shadow produced, for those in shadow behind them."""

    @property
    def model(self) -> str:
        """The model to route by: what the client asked for, or what preprocessing put in its place."""
        body = self.body
        if self.body_edits:
            return str(self.field("model") or body.model)
        return body.document.get("model") or body.model  # pyright: ignore[reportReturnType] - as `parse` checked

    @property
    def prompt(self) -> Prompt:
        """The prompt as known without a tokenizer."""
        return self.measured or self.measure()

    def measure(self) -> Prompt:
        """Find out `prompt` now, which takes long for a large body."""
        self.measured = found = prompt_of(self.body)
        return found

    def read(self, key: Key[T]) -> T | None:
        """The attribute that an earlier processor produced."""
        # `write` takes values of the key's type only.
        return self.attributes.get(key.name)  # pyright: ignore[reportReturnType]

    def write(self, key: Key[T], value: T) -> None:
        """Produce an attribute; later stages read it as `request.attributes[key.name]`. It must be JSON. Raises
        PluginError for one that no configured processor declares: what reads it couldn't be checked."""
        if self.declared is not None and key.name not in self.declared:
            raise PluginError(f"the attribute {key.name!r} isn't declared; add its key to `produces`")
        self.attributes[key.name] = cast("JsonValue", value)

    def say(self, note: str) -> None:
        """Why the running processor decides so: for the decision's trail, without prompt text or credentials."""
        self.note = note

    def header(self, name: str) -> str | None:
        """A header as it stands after the edits so far; its name in any case."""
        name = name.lower()
        edit = self.header_edits.get(name)
        return self.envelope.headers.get(name) if edit is None else edit.value

    def set_header(self, name: str, value: str, *, tells: str | None = None) -> None:
        """Set a header of the request that the engine gets. An unchanged value is no edit, unless `tells` names what a
        later stage may choose differently (as in `HeaderEdit.tells`)."""
        name = name.lower()
        if tells is not None or self.header(name) != value:
            self.header_edits[name] = HeaderEdit(name=name, value=value, tells=tells)

    def remove_header(self, name: str) -> None:
        """Remove a header. Removing an absent one is no edit."""
        name = name.lower()
        if self.header(name) is not None:
            self.header_edits[name] = HeaderEdit(name=name)

    def set_answer_header(self, name: str, value: str) -> None:
        """Set a header of the client's response, from any source."""
        name = name.lower()
        self.answer_headers[name] = HeaderEdit(name=name, value=value)

    def hide_header(self, name: str) -> None:
        """Keep a header that holds a credential from the engine and from every reader of the request's facts."""
        name = name.lower()
        self.remove_header(name)
        self.headers.readable.pop(name, None)

    def field(self, name: str) -> JsonValue:
        """A top-level field of the body as it stands after the edits so far; None when absent or null."""
        edit = self.body_edits.get(name)
        return self.body.document.get(name) if edit is None else edit.value

    def set_field(self, name: str, value: JsonValue, *, unasked: bool = False) -> None:
        """Set a top-level field of the body that the engine gets; every other byte stays. `unasked`: what the engine
        adds to its answer for this is kept from the client."""
        if name not in self.body.document or self.field(name) != value:
            self.body_edits[name] = BodyEdit(field=name, value=value, unasked=unasked)

    def remove_field(self, name: str) -> None:
        """Remove a top-level field. Removing an absent one is no edit."""
        if name in self.body.document or name in self.body_edits:
            self.body_edits[name] = BodyEdit(field=name, remove=True)


class RequestProcessor(Plugin[ParamsT_co]):
    """Runs for every request, whichever profile it gets."""

    group = "pointsman.preprocessor.processors"
    stability = "beta"

    reports: ClassVar[bool] = False
    """Whether its verdict is reported for every request. Other processors are reported when they leave a note, end the
    request or fail."""
    authenticates: ClassVar[bool] = False
    """Whether it authenticates the sender. A request that no such processor recognises is rejected with 401. Edges
    recognise these types by names that end in `-auth`."""
    credentials: Sequence[str] = ()
    """Headers (lower-case names) in which it looks for a credential."""

    def bind(self, config: Config) -> None:
        """Check the parameters against the whole configuration. Raises PluginError; called once, before `process`."""
        del config

    def connect(self, ports: Ports) -> None:
        """Take its access to things beyond the request; called once, after `bind`. Without ports it runs alone, for a
        test of the configuration."""
        del ports

    @abstractmethod
    def process(self, incoming: Incoming) -> Awaitable[None] | None:
        """Read the request, produce attributes, edit headers and fields. Raises Refusal to end the request, and
        Unavailable when the work can't be done now; the entry's `on_error` then decides.

        Returns an awaitable only when it must wait for a peer.
        """

    def degrade(self, incoming: Incoming) -> bool:
        """Fall back to the work that is possible without the peer that failed in `process`, for `on_error: degrade`;
        False when there is no fallback. The changes that `process` had made are undone first. Raises Refusal."""
        del incoming
        return False
