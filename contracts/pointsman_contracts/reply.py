"""Replies of stages to the inbox of an edge, for a request that it sent to them."""

from typing import Annotated, ClassVar, Final, Literal, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import BodyEdit, CascadeStep, HeaderEdit, Stage, StageReport, Target
from pointsman_contracts.message import Address, MalformedMessage, Message, Part, always, to_blob, write
from pointsman_contracts.response import Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.service_level import ServicePromise
from pointsman_contracts.session import RequestSession

EVENT_STREAM: Final = "text/event-stream"
STAGE_UNAVAILABLE: Final = "stage_unavailable"
"""Code of a rejection because the next stage has no live replica."""


class EngineAddress(Part, frozen=True, kw_only=True):
    """A worker, and how a request reaches it."""

    worker: str
    """The provider's name where a provider serves the model."""
    url: str
    """Base URL, e.g. `http://10.0.0.7:8000`; empty for a provider, which the edge resolves by its configuration."""
    rank: int | None = None
    """Data-parallel rank that the request asks for at `url`; None: it asks for none."""
    rank_field: str | None = None
    """The body field that names the rank (`WorkerRegistration.rank_field`)."""


class ChosenEndpoint(EngineAddress, frozen=True, kw_only=True):
    """An endpoint to send the request to."""

    target: Target | None = None
    """Set on a fallback that serves another model than the decision's target."""


class PrefillLeg(EngineAddress, frozen=True, kw_only=True):
    """The engine that computes the prompt for the endpoint that answers."""

    engine: str
    """Kind of both engines, as `WorkerRegistration.engine`: it says how the KV cache gets from one to the other."""
    bootstrap_port: int | None = None
    """Port of the engine at which SGLang's two engines find each other; None: the default."""
    ranks: int | None = None
    """Ranks of the server (`WorkerRegistration.ranks`); SGLang's engines derive the rank from the number of a
    request."""


TokenIds = Literal["unasked", "asked", "never"]
"""`unasked`: it is a stream, and its client doesn't ask for token ids. `asked`: its client does. `never`: it isn't a
stream, or its text would be another one with token ids."""


class Decision(Message, frozen=True, kw_only=True, tag_field="kind", tag="decision"):
    """Where the request goes and what the edge changes and owes. Sent by the scheduler, or by the stage before it when
    a provider serves the model; read by the edge."""

    address: ClassVar[Address] = Address("rpc", "request", "decision", route=("inbox",))

    request_id: str
    attempt: int = always(1)
    revision: int
    profile: str
    model: str
    """The model that the client asked for; the answer carries this name."""
    target: Target
    endpoints: tuple[ChosenEndpoint, ...]
    """At least one: the first choice, then the fallbacks in order."""
    alternatives: tuple[Target, ...] = always(())
    """Other models to try, in order, when no endpoint answered before its first byte."""
    headers: tuple[HeaderEdit, ...] = always(())
    body: tuple[BodyEdit, ...] = always(())
    answer_headers: tuple[HeaderEdit, ...] = always(())
    """Changes of the answer's headers, errors included; the edge makes them last."""
    response: tuple[Stage, ...] = always(())
    level: str = always("full")
    reasons: tuple[str, ...] = always(())
    scheduler: str
    """Instance that holds the reservation; empty without one, as for a provider."""
    queued_ms: float = always(0.0)
    """Milliseconds spent in flow control."""
    identity: Identity | None = None
    """For the events about the request; None when no stage determined it."""
    prompt_tokens: int = always(0)
    """Tokens of the prompt (`RequestFacts.prompt_tokens`); the edge uses it when neither engine nor provider reports
    usage."""
    answers: Annotated[int, Meta(ge=1)] = always(1)
    """Answers that the request asks for."""
    token_ids: TokenIds | None = None
    """Whether an edge that lets another engine continue the answer may ask for its token ids. None: not known."""
    first_byte_within_ms: float | None = None
    """From this time on without an answer that isn't streamed the first endpoint is suspect, and another one may be
    tried beside it: the time that the scheduler predicts for the longest answer, and a margin by what the pool's
    requests have shown. None when it is unknown, or no other endpoint is known to answer."""
    promise: ServicePromise | None = None
    """None for a request without a service level."""
    session: RequestSession | None = None
    """For the events about the request; None for a request without one."""
    prefill: PrefillLeg | None = None
    """Another engine computes the prompt, and an edge that sends requests itself sends both legs. None: the endpoint
    that answers computes it, or has a sidecar that reads the prefiller from the headers."""
    cascade: CascadeStep | None = None
    """The cascade (`Journey.cascade`): an edge that sends requests itself judges the answer, and asks for another
    decision where it isn't confident. Any other edge passes the answer on."""
    explained: RequestScheduled | None = None
    """Set for a dry run: the event that the decision of a real request would have."""


class Rejection(Message, frozen=True, kw_only=True, tag_field="kind", tag="rejection"):
    """The request ends with an error. Sent by any stage, read by the edge, which responds to the client."""

    address: ClassVar[Address] = Address("rpc", "request", "rejection", route=("inbox",))

    request_id: str
    attempt: int = always(1)
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
    answer_headers: tuple[HeaderEdit, ...] = always(())
    """Changes of the error's headers, e.g. how much of a limit is left."""
    profile: str | None = None
    model: str | None = None
    """The model that the client asked for, once the body was read."""
    target: Target | None = None
    identity: Identity | None = None
    trail: tuple[StageReport, ...] = always(())
    promise: ServicePromise | None = None
    """The service level that is missed by it; None without one, and where the request itself was wrong."""


class Answer(Message, frozen=True, kw_only=True, tag_field="kind", tag="answer"):
    """The request ends with a response that a stage has, e.g. a cached one. Sent by any stage, read by the edge, which
    sends it to the client and skips the stages on the way back, except those in `response`.

    On the wire: this document on one line, a newline, then the raw body. Together they fit into the bus's
    `max_payload`, the document alone into 64 KiB.
    """

    address: ClassVar[Address] = Address("rpc", "request", "answer", route=("inbox",))

    request_id: str
    attempt: int = always(1)
    stage: str
    """Service that ended the journey."""
    status: Annotated[int, Meta(ge=200, le=599)] = always(200)
    content_type: str = always("application/json")
    """`text/event-stream`: the body is every event of a stream, each one whole."""
    named: str | None = None
    """The model's name in the body, where it isn't `model`: the edge puts that in its place."""
    usage: Usage = always(Usage())
    """Usage that is counted for this response: none, unless a model generated it for the stage."""
    saved: Usage | None = None
    """Usage that a model would have had for the same response."""
    answer_headers: tuple[HeaderEdit, ...] = always(())
    """Changes of the answer's headers; the edge makes them last."""
    response: tuple[Stage, ...] = always(())
    """Stages on the way back that the answer still has to pass, beside those of every answer."""
    model: str | None = None
    """The model that the client asked for; the answer carries this name."""
    profile: str | None = None
    target: Target | None = None
    identity: Identity | None = None
    level: str = always("full")
    reasons: tuple[str, ...] = always(())
    trail: tuple[StageReport, ...] = always(())
    body: bytes = b""
    """In the shape of the API that was asked. No field of the document: it follows it."""

    @property
    def stream(self) -> bool:
        """Whether the client gets a stream of server-sent events."""
        return self.content_type.startswith(EVENT_STREAM)

    def encode(self) -> bytes:
        """The document and the body."""
        return b"\n".join((write(replace(self, body=b"")), self.body))

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Parse a document and the body behind it. Raises MalformedMessage."""
        whole = data.encode() if isinstance(data, str) else bytes(data)
        document, _, body = whole.partition(b"\n")
        return replace(super().decode(document), body=body)


class Parked(Message, frozen=True, kw_only=True, tag_field="kind", tag="parked"):
    """A stage holds the request on purpose: the edge keeps waiting and doesn't resend. Sent by a stage."""

    address: ClassVar[Address] = Address("rpc", "request", "parked", route=("inbox",))

    request_id: str
    attempt: int = always(1)
    stage: str
    instance: str
    """The replica that holds it; when it falls silent the edge re-sends."""
    reason: str
    held_ms: int | None = None
    """Longest time for which it holds the request, in milliseconds. The edge resends when no reply comes within its hop
    budget after that. None: until it replies."""


Reply = Decision | Rejection | Parked | Answer
"""Any message that arrives on an edge's inbox; its document begins with the member `kind`."""

_read_document: Final = msgspec.json.Decoder(Reply, strict=False, dec_hook=to_blob).decode


def read_reply(payload: bytes) -> Reply:
    """A reply as it arrived. Raises MalformedMessage."""
    end = payload.find(b"\n")
    try:
        if end < 0:
            return _read_document(payload)
        try:
            reply = _read_document(memoryview(payload)[:end])
        except ValueError:
            # Others than an answer are one document, which may have line breaks.
            return _read_document(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage.from_error("Reply", error) from None
    return replace(reply, body=payload[end + 1 :]) if isinstance(reply, Answer) else reply
