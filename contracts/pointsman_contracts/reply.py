"""Replies of stages to the inbox of an edge, for a request that it sent to them."""

from typing import Annotated, ClassVar, Final, Literal, Self, TypedDict

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.json_schema import SkipJsonSchema

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import BodyEdit, HeaderEdit, Stage, StageReport, Target
from pointsman_contracts.message import Address, Message, Part, unchecked
from pointsman_contracts.message_reader import message_reader
from pointsman_contracts.response import Usage

EVENT_STREAM: Final = "text/event-stream"
STAGE_UNAVAILABLE: Final = "stage_unavailable"
"""Code of a rejection because the next stage has no live replica."""


@unchecked
class ChosenEndpoint(Part):
    """An endpoint to send the request to."""

    worker: str
    """The provider's name where a provider serves the model."""
    url: str
    """Base URL, e.g. `http://10.0.0.7:8000`; empty for a provider, which the edge resolves by its configuration."""
    target: Target | None = None
    """Set on a fallback that serves another model than the decision's target."""


@unchecked
class PrefillLeg(Part):
    """The engine that computes the prompt for the endpoint that answers."""

    worker: str
    url: str
    """Base URL, as `ChosenEndpoint.url`."""
    engine: str
    """Kind of both engines, as `WorkerRegistration.engine`: it says how the KV cache gets from one to the other."""
    bootstrap_port: int | None = None
    """Port of the engine at which SGLang's two engines find each other; None: the default."""


@unchecked
class Decision(Message):
    """Where the request goes and what the edge changes and owes. Sent by the scheduler, or by the stage before it when
    a provider serves the model; read by the edge."""

    address: ClassVar[Address] = Address("rpc", "request", "decision", route=("inbox",))

    kind: Literal["decision"] = "decision"
    request_id: str
    attempt: int = 1
    revision: int
    profile: str
    model: str
    """The model that the client asked for; the answer carries this name."""
    target: Target
    endpoints: tuple[ChosenEndpoint, ...]
    """At least one: the first choice, then the fallbacks in order."""
    alternatives: tuple[Target, ...] = ()
    """Other models to try, in order, when no endpoint answered before its first byte."""
    headers: tuple[HeaderEdit, ...] = ()
    body: tuple[BodyEdit, ...] = ()
    answer_headers: tuple[HeaderEdit, ...] = ()
    """Changes of the answer's headers, errors included; the edge makes them last."""
    response: tuple[Stage, ...] = ()
    level: str = "full"
    reasons: tuple[str, ...] = ()
    scheduler: str
    """Instance that holds the reservation; empty without one, as for a provider."""
    queued_ms: float = 0.0
    """Milliseconds spent in flow control."""
    identity: Identity | None = None
    """For the events about the request; None when no stage determined it."""
    prompt_tokens: int = 0
    """As `RequestFacts.prompt_tokens`; the edge uses it when neither engine nor provider reports usage."""
    answers: int = Field(default=1, ge=1)
    """As `RequestFacts.answers`."""
    first_byte_within_ms: float | None = None
    """From this time on without an answer that isn't streamed the first endpoint is suspect, and another one may be
    tried beside it: the time that the scheduler predicts for the longest answer, and a margin by what the pool's
    requests have shown. None when it is unknown, or no other endpoint is known to answer."""
    prefill: PrefillLeg | None = None
    """Another engine computes the prompt, and an edge that sends requests itself sends both legs. None: the endpoint
    that answers computes it, or has a sidecar that reads the prefiller from the headers."""


class DecisionFields(TypedDict):
    """All fields of `Decision` in their order, for `set_fields`."""

    kind: Literal["decision"]
    request_id: str
    attempt: int
    revision: int
    profile: str
    model: str
    target: Target
    endpoints: tuple[ChosenEndpoint, ...]
    alternatives: tuple[Target, ...]
    headers: tuple[HeaderEdit, ...]
    body: tuple[BodyEdit, ...]
    answer_headers: tuple[HeaderEdit, ...]
    response: tuple[Stage, ...]
    level: str
    reasons: tuple[str, ...]
    scheduler: str
    queued_ms: float
    identity: Identity | None
    prompt_tokens: int
    answers: int
    first_byte_within_ms: float | None
    prefill: PrefillLeg | None


class Rejection(Message):
    """The request ends with an error. Sent by any stage, read by the edge, which responds to the client."""

    address: ClassVar[Address] = Address("rpc", "request", "rejection", route=("inbox",))

    kind: Literal["rejection"] = "rejection"
    request_id: str
    attempt: int = 1
    stage: str
    """Service that ended the journey."""
    status: int
    """HTTP status, 400 to 599."""
    type: str
    """OpenAI's error type, e.g. `invalid_request_error`."""
    code: str | None = None
    """OpenAI's error code, e.g. `model_not_found`."""
    message: str
    """For the client: what was wrong and what would be right. Never repeats prompt text."""
    param: str | None = None
    retry_after_s: float | None = None
    dropped_reason: str | None = None
    """Value of `x-pointsman-dropped-reason`, e.g. `rejected-saturated`."""
    missing: str | None = None
    """Service that has no live replica, where that ended the journey: an edge may hold the request until one is
    back."""
    answer_headers: tuple[HeaderEdit, ...] = ()
    """Changes of the error's headers, e.g. how much of a limit is left."""
    profile: str | None = None
    model: str | None = None
    """The model that the client asked for, once the body was read."""
    target: Target | None = None
    identity: Identity | None = None
    trail: tuple[StageReport, ...] = ()


class Answer(Message):
    """The request ends with a response that a stage has, e.g. a cached one. Sent by any stage, read by the edge, which
    sends it to the client and skips the stages on the way back, except those in `response`.

    On the wire: this document on one line, a newline, then the raw body. Together they fit into the bus's
    `max_payload`, the document alone into 64 KiB.
    """

    address: ClassVar[Address] = Address("rpc", "request", "answer", route=("inbox",))

    kind: Literal["answer"] = "answer"
    request_id: str
    attempt: int = 1
    stage: str
    """Service that ended the journey."""
    status: int = Field(default=200, ge=200, le=599)
    content_type: str = "application/json"
    """`text/event-stream`: the body is every event of a stream, each one whole."""
    named: str | None = None
    """The model's name in the body, where it isn't `model`: the edge puts that in its place."""
    usage: Usage = Usage()
    """Usage that is counted for this response: none, unless a model generated it for the stage."""
    saved: Usage | None = None
    """Usage that a model would have had for the same response."""
    answer_headers: tuple[HeaderEdit, ...] = ()
    """Changes of the answer's headers; the edge makes them last."""
    response: tuple[Stage, ...] = ()
    """Stages on the way back that the answer still has to pass, beside those of every answer."""
    model: str | None = None
    """The model that the client asked for; the answer carries this name."""
    profile: str | None = None
    target: Target | None = None
    identity: Identity | None = None
    level: str = "full"
    reasons: tuple[str, ...] = ()
    trail: tuple[StageReport, ...] = ()
    body: SkipJsonSchema[bytes] = Field(default=b"", exclude=True)
    """In the shape of the API that was asked. No field of the document: it follows it."""

    @property
    def stream(self) -> bool:
        """Whether the client gets a stream of server-sent events."""
        return self.content_type.startswith(EVENT_STREAM)

    def encode(self) -> bytes:
        """The document and the body."""
        return b"\n".join((super().encode(), self.body))

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Parse a document and the body behind it. Raises `pydantic.ValidationError`."""
        whole = data.encode() if isinstance(data, str) else bytes(data)
        document, _, body = whole.partition(b"\n")
        return super().decode(document).model_copy(update={"body": body})


class Parked(Message):
    """A stage holds the request on purpose: the edge keeps waiting and doesn't resend. Sent by a stage."""

    address: ClassVar[Address] = Address("rpc", "request", "parked", route=("inbox",))

    kind: Literal["parked"] = "parked"
    request_id: str
    attempt: int = 1
    stage: str
    instance: str
    """The replica that holds it; when it falls silent the edge re-sends."""
    reason: str
    held_ms: int | None = None
    """Longest time for which it holds the request, in milliseconds. The edge resends when no reply comes within its hop
    budget after that. None: until it replies."""


Reply = Annotated[Decision | Rejection | Parked | Answer, Field(discriminator="kind")]
"""Any message that arrives on an edge's inbox."""

REPLY: Final[TypeAdapter[Decision | Rejection | Parked | Answer]] = TypeAdapter(Reply)
"""The document of a reply; `read_reply` reads a whole one."""


def _read_any(payload: bytes) -> Decision | Rejection | Parked | Answer:
    end = payload.find(b"\n")
    if end < 0:
        return REPLY.validate_json(payload)
    try:
        reply = REPLY.validate_json(payload[:end])
    except ValidationError:
        # Others than an answer are one document, which may have line breaks.
        return REPLY.validate_json(payload)
    return reply.model_copy(update={"body": payload[end + 1 :]}) if isinstance(reply, Answer) else reply


read_reply: Final = message_reader(Decision, _read_any)
"""A reply as it arrived; most are decisions. Raises `pydantic.ValidationError`."""
