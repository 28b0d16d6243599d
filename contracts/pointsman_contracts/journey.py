"""The messages of a request on its way through the stages, where it is reduced to facts.

The body travels once, from the edge to the preprocessor. Every later message carries sizes, hashes and identifiers,
never prompt text, and is at most `JOURNEY_LIMIT` bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Final, Self, TypedDict, Unpack

from msgspec import Meta, field
from msgspec.structs import replace

from pointsman_contracts.cascade import ConfidenceRule
from pointsman_contracts.message import NO_BYTES, Address, Blob, JsonValue, Message, Part, always
from pointsman_contracts.model_choice import ModelChoice, ModelPoint
from pointsman_contracts.service_level import REFUSE, SERVE
from pointsman_contracts.target import Target as Target  # noqa: PLC0414 - readers of journeys import it from here

FIELDS_LIMIT: Final = 64
"""Most fields of a body that a request's facts have, in the body's order."""
JOURNEY_LIMIT: Final = 65536
"""Largest encoded message of the itinerary and largest event, in bytes; enforced where it is published."""


class PreprocessRequest(Message, frozen=True, kw_only=True):
    """An HTTP request as the edge received it. Sent by an edge, read by the preprocessor. On the wire: this document on
    one line, a newline, then the raw body."""

    address: ClassVar[Address] = Address("rpc", "request", "preprocess")

    request_id: str
    """Unique among the open requests of its edge; the client's `x-request-id` or one that the edge made."""
    edge: str
    """Instance of the edge that waits for the decision."""
    attempt: int = always(1)
    """2 when the edge resends a journey that got no reply."""
    received_ms: int
    """Unix milliseconds at which the edge had the whole request."""
    deadline_ms: int
    """Unix milliseconds after which the client gets 504."""
    revision: int
    """Configuration revision that this request keeps to its end."""
    method: str
    path: str
    """Without the query string, e.g. `/v1/chat/completions`."""
    model: str | None = None
    """The model of the request, where the edge knows it and the body doesn't name it."""
    continued_tokens: int | None = None
    """Tokens of the response that it continues, with its prompt; None: unknown, or it continues none."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Lower-case names; hop-by-hop headers and untrusted `x-gateway-*` and `x-pointsman-*` are gone."""
    client: str = always("")
    """Address of the peer."""
    body_bytes: int | None = None
    """Its length where the body is too large for a message: none follows, and the preprocessor asks for it in parts."""
    decision: int = always(1)
    """How often a decision about the request was asked for: 2 once no endpoint of the first one answered, or once its
    cascade went on. A journey that is resent keeps the number."""
    escalated: tuple[str, ...] | None = None
    """Models of a selector's cascade that were asked already, by the configuration's names: the next one is."""
    dry_run: bool | None = None
    """It asks for the decision alone: a stage decides as ever, and counts, reserves, keeps and learns nothing."""

    def changed(self, **changes: Unpack["RequestChanges"]) -> Self:
        """A copy with these fields changed. Raises TypeError for an unknown field."""
        return replace(self, **changes)

    def asked_again(self, decision: int, escalated: tuple[str, ...] | None) -> Self:
        """The question for this decision about the same request."""
        return replace(self, attempt=decision, decision=decision, escalated=escalated)


class RequestChanges(TypedDict, total=False):
    """The fields of `PreprocessRequest` that an edge changes when it sends the request again."""

    attempt: int
    headers: dict[str, str]
    body_bytes: int | None


class BlockChain(Part, frozen=True, kw_only=True):
    """The blocks of a prompt in one block size."""

    block_tokens: int
    blocks: Blob
    """Block hashes, 8 bytes each, like `RequestFacts.blocks`."""


class RequestFacts(Part, frozen=True, kw_only=True):
    """Facts about a request, found by the preprocessor. They never contain prompt text."""

    api: str
    """`chat.completions`, `completions`, `embeddings`, `responses`, `messages`, or the API of what passes: `rerank`."""
    path: str = always("")
    """Path of the HTTP request, without the query string."""
    stream: bool = always(False)
    body_bytes: int = always(0)
    prompt_tokens: int = always(0)
    """Length of the prompt in tokens: exact when a tokenizer is configured, otherwise estimated."""
    tokens_exact: bool = always(False)
    continued_tokens: int | None = None
    """Part of `prompt_tokens` that the engine keeps of earlier turns; None where the body has all, or it's unknown."""
    max_output_tokens: int | None = None
    """The client's limit on each answer; None when it set none."""
    hinted_output_tokens: int | None = None
    """Tokens that the client expects of the answer (`agent_hints.osl`), for predictions alone; None without a hint."""
    answers: Annotated[int, Meta(ge=1)] = always(1)
    """How many answers the engine generates: `n` or `best_of`, for each prompt. They share the prompt."""
    block_tokens: int = always(64)
    """Tokens in each block of `blocks`."""
    blocks: Blob = always(NO_BYTES)
    """Chained 64-bit hashes of the full prompt blocks, little-endian, 8 bytes each, first block first.
    At most 4,096; a longer prompt is described by its first 4,096 blocks. Salted by tenant, and by model and
    adapter once the target is settled (`pointsman_core.settled_target.salted`)."""
    blocks_precise: bool = always(False)
    """Whether engines' KV events use the same names for these blocks: hashes of token ids, with no salt that engines
    don't know. Otherwise holders are inferred from earlier routing decisions."""
    other_chains: tuple[BlockChain, ...] = always(())
    """The same for the block sizes of the other pools that may be chosen; empty once the target is settled."""
    fingerprint: Blob = always(NO_BYTES)
    """Hash of everything that decides the response except the model (`pointsman_core.fingerprint`), set where a profile
    has a cache. Any later stage that changes the body, other than the model, must clear it."""
    features: tuple[str, ...] = always(())
    """Features that the request needs of a model, e.g. `tools`, `vision`, `json`."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Request headers that rules and plugins may read; credentials and cookies are gone."""
    fields: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Numbers, booleans and short identifiers of the body's top level that rules may read."""
    attributes: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Values that preprocessing plugins produced, by attribute key."""
    session: str | None = None
    priority: int = always(0)
    """Higher goes first; negative may be shed."""
    fairness_id: str = always("")
    """The flow that this request shares capacity in; empty is the default flow."""
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    slo_class: str = ""
    """The service class of the promise."""
    slo_late: str = SERVE
    """`serve`, `refuse` or `spill`: the way in which a scheduler treats the request when it would be late."""
    slo_weight: float = 1.0
    """The share that the class is entitled to while not all requests can be in time, beside the weights of others."""
    slo_spilled_from: str = ""
    """Pool that was predicted to be late, so that the request went to another model."""
    subset: tuple[str, ...] | None = None
    """Endpoints (`host` or `host:port`) that a trusted proxy restricts the choice to."""
    workers: tuple[str, ...] | None = None
    """Workers that a trusted proxy has chosen itself: the one that answers and, when the prompt is computed elsewhere,
    the one that does."""
    decision: int = 1
    """The number of the decision to make (`PreprocessRequest.decision`)."""
    escalated: tuple[str, ...] = ()
    """Models of the cascade that have answered before (`PreprocessRequest.escalated`); mostly none."""
    dry_run: bool = False
    """Whether it asks for the decision alone (`PreprocessRequest.dry_run`)."""

    def in_blocks_of(self, block_tokens: int) -> "RequestFacts":
        """The facts for a pool with this block size; without blocks where the prompt wasn't hashed in that size."""
        if block_tokens == self.block_tokens and not self.other_chains:
            return self
        chains = {chain.block_tokens: chain.blocks for chain in self.other_chains} | {self.block_tokens: self.blocks}
        blocks = chains.get(block_tokens, NO_BYTES)
        return self.changed(block_tokens=block_tokens, blocks=blocks, other_chains=())

    def of_target(self, blocks: Blob) -> "RequestFacts":
        """The facts with the target's own blocks."""
        return replace(self, blocks=blocks, other_chains=())

    @property
    def is_promised(self) -> bool:
        """Whether the operator promised a time to the first token. A client's own objectives alone change no order."""
        return self.slo_ttft_ms is not None and self.slo_class != ""

    @property
    def is_refused_late(self) -> bool:
        """Whether it is refused rather than served late."""
        return self.slo_late == REFUSE and self.is_promised

    def changed(self, **changes: Unpack["FactsChanges"]) -> Self:
        """A copy with these fields changed. Raises TypeError for an unknown field."""
        return replace(self, **changes)


class FactsChanges(TypedDict, total=False):
    """The fields of `RequestFacts` that stages change."""

    block_tokens: int
    blocks: Blob
    other_chains: tuple[BlockChain, ...]
    fingerprint: Blob
    attributes: dict[str, JsonValue]
    slo_ttft_ms: float | None
    slo_itl_ms: float | None
    slo_class: str
    slo_late: str
    slo_weight: float


AFTER: Final = "after"
"""Mode of a stage that reviews a response after the client has all of it."""


class AnswerUse(Part, frozen=True, kw_only=True):
    """When a stage reviews a response, and which part of it the stage gets."""

    mode: str = always(AFTER)
    """`buffer`: the whole, before the client has any of it. `window`: each piece before it leaves. `after`: later."""
    content: str = always("none")
    """`none`: facts. `text`: the texts. `body`: the bytes that the client gets."""
    window: int = always(512)
    """Characters of text that make up a window."""
    overlap: int = always(64)
    """Characters at a window's end that are shown again with the next one, and held back until then."""
    sentences: bool = always(False)
    """A window may end early, from half its size on, where a sentence does."""
    share: float = always(1.0)
    """Share of the answers that it is asked about, in mode `after`. All turns of a session are in it, or none."""


class Stage(Part, frozen=True, kw_only=True):
    """One entry of an itinerary."""

    service: str
    """Name of the service, e.g. `model-selector`."""
    policy: str | None = None
    """Named instance inside that service, e.g. `cheap`."""
    mode: str = always("enforce")
    """`shadow`: the stage's decision is only reported; the request continues as if the stage were absent."""
    timeout_ms: int | None = None
    """How long the stage may take; None leaves it to the deadline."""
    on_error: str = always("deny")
    """For a stage that has no replica, fails or times out. `allow`: skip it. `deny`: reject the request. `degrade`: the
    stage does what it still can; skip it if it can't be reached."""
    answer: AnswerUse | None = None
    """For a stage on the way back."""
    memo: str | None = None
    """A note that the stage left on the way in for its own use on the way back. Opaque to others; never prompt text."""

    def noted(self, memo: str | None) -> Self:
        """The same entry with another memo."""
        return replace(self, memo=memo)


class CascadeStep(Part, frozen=True, kw_only=True):
    """The place of a decision in a cascade: its answer is held until it is judged."""

    model: str
    """The configuration's name of the model that is asked now."""
    rest: tuple[str, ...]
    """Names of the models that come after it, in order; at least one."""
    confident: ConfidenceRule
    check: Stage | None = None
    """A stage that reviews the whole answer: one that it blocks isn't confident."""
    hold_tokens: int | None = None
    """A streamed answer is judged, and leaves, once it has about this many tokens. None: once it is whole."""
    within_ms: int | None = None
    """How long the answer may take; None: half of the time that the request has left."""

    def of_next_model(self) -> "CascadeStep | None":
        """The step after this one; None where that is the last model, whose answer isn't judged."""
        model, *rest = self.rest
        return replace(self, model=model, rest=tuple(rest)) if rest else None


class StageReport(Part, frozen=True, kw_only=True):
    """The outcome of one stage for a request, for the decision event."""

    stage: str
    """The service's name; of a processor `preprocessor/<instance>`."""
    instance: str
    outcome: str = always("passed")
    """`passed`, `skipped` (it failed and `on_error` isn't `deny`), `degraded` (it did what it still could), `rejected`,
    `answered`. Of a stage in shadow: `shadow_passed`, `shadow_rejected`, `shadow_answered`."""
    took_ms: float = always(0.0)
    """Milliseconds inside the stage, without the bus."""
    note: str | None = None
    """Why, in words without prompt text, e.g. the rule that matched."""

    def changed(self, **changes: Unpack["ReportChanges"]) -> Self:
        """A copy with these fields changed. Raises TypeError for an unknown field."""
        return replace(self, **changes)


class ReportChanges(TypedDict, total=False):
    """The fields of `StageReport` that are changed after a stage has made it."""

    outcome: str
    took_ms: float
    note: str | None


class BodyEdit(Part, frozen=True, kw_only=True):
    """A change of one top-level field of the body; every other byte stays as it is."""

    field: str
    value: JsonValue = None
    remove: bool = always(False)
    unasked: bool = always(False)
    """The client didn't ask for what the engine adds to its response because of this edit: the edge removes it."""


def edited(document: Mapping[str, object], edits: Iterable[BodyEdit]) -> dict[str, object]:
    """A body's document with all edits applied except `unasked` ones, whose effect the client never sees. A field
    that is removed is None."""
    return {**document} | {edit.field: None if edit.remove else edit.value for edit in edits if not edit.unasked}


class HeaderEdit(Part, frozen=True, kw_only=True):
    """A header to set, or to remove when `value` is None."""

    name: str
    value: str | None = None
    tells: str | None = None
    """`model` or `base_model`: the value is the name of the one that serves the request."""


def retold(edits: tuple[HeaderEdit, ...], target: Target) -> tuple[HeaderEdit, ...]:
    """The edits for a request that `target` serves now. An unknown base model is an empty value."""
    names = {"model": target.model, "base_model": target.model if target.lora is None else target.base or ""}
    return tuple(
        [
            edit if edit.tells not in names else HeaderEdit(name=edit.name, value=names[edit.tells], tells=edit.tells)
            for edit in edits
        ]
    )


class Journey(Message, frozen=True, kw_only=True):
    """A request on its way through the stages (routing slip). Sent and read by stages. Its subject is that of the stage
    at `itinerary[0]`; see `subjects.stage_subject`."""

    address: ClassVar[Address] = Address("rpc", "request", "journey", route=("stage",))

    request_id: str
    edge: str
    attempt: int = always(1)
    received_ms: int
    deadline_ms: int
    revision: int
    request: RequestFacts
    model: str
    """The model that the client asked for."""
    rewritten: str | None = None
    """The model that a rewrite rule put in its place; None without a rewrite."""
    target: Target | None = None
    """Set by the stage that settles the model."""
    alternatives: tuple[Target, ...] = always(())
    """Other models to try, in order, when the target fails before the first byte."""
    joint: ModelChoice | None = None
    """Models that the scheduler chooses among, together with the engine; `target` is one of them. Until then the
    prompt's blocks belong to no model. None once the model is settled."""
    models: tuple[ModelPoint, ...] | None = None
    """The outcome of that choice."""
    cascade: CascadeStep | None = None
    """Set where the target is asked first, and `alternatives` only if its answer isn't confident."""
    profile: str | None = None
    """Set by the profile-picker, once."""
    itinerary: tuple[Stage, ...] = always(())
    """Stages still to come; the first one is the receiver."""
    response: tuple[Stage, ...] = always(())
    """Stages that the edge runs on the way back."""
    headers: tuple[HeaderEdit, ...] = always(())
    body: tuple[BodyEdit, ...] = always(())
    answer_headers: tuple[HeaderEdit, ...] = always(())
    """Changes of the answer's headers, errors included; the edge makes them last."""
    level: str = always("full")
    """`full`, or `degraded` when a stage decided although it missed something."""
    reasons: tuple[str, ...] = always(())
    """Why the level isn't `full`."""
    trail: tuple[StageReport, ...] = always(())

    @property
    def wanted(self) -> str:
        """The model to route by; `model` is for the client's eyes."""
        return self.rewritten or self.model

    def changed(self, **changes: Unpack["JourneyChanges"]) -> Self:
        """A copy with these fields changed. Raises TypeError for an unknown field."""
        return replace(self, **changes)


class JourneyChanges(TypedDict, total=False):
    """The fields of a journey that stages change."""

    request: RequestFacts
    target: Target | None
    alternatives: tuple[Target, ...]
    joint: ModelChoice | None
    models: tuple[ModelPoint, ...] | None
    cascade: CascadeStep | None
    profile: str | None
    itinerary: tuple[Stage, ...]
    response: tuple[Stage, ...]
    headers: tuple[HeaderEdit, ...]
    body: tuple[BodyEdit, ...]
    answer_headers: tuple[HeaderEdit, ...]
    level: str
    reasons: tuple[str, ...]
    trail: tuple[StageReport, ...]
