"""What an edge receives on its inbox for a request that it sent into the stages."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Stage, StageReport, Target
from pointsman_contracts.message import Address, Message, Part


class ChosenEndpoint(Part):
    """An endpoint to send the request to."""

    worker: str
    """The provider's name where a provider serves the model."""
    url: str
    """Base URL, e.g. `http://10.0.0.7:8000`; empty for a provider, which the edge resolves by its configuration."""
    target: Target | None = None
    """Set on a fallback that serves another model than the decision's target."""


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
    """Instance that holds the reservation; empty when nobody does, as for a provider."""
    queued_ms: float = 0.0
    """Milliseconds spent in flow control."""


class Rejection(Message):
    """The request ends here with an error. Sent by any stage, read by the edge, which answers the client."""

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
    answer_headers: tuple[HeaderEdit, ...] = ()
    """Changes of the error's headers, e.g. how much of a limit is left."""
    profile: str | None = None
    target: Target | None = None
    trail: tuple[StageReport, ...] = ()


class Parked(Message):
    """A stage holds the request on purpose: the edge waits on and doesn't re-send. Sent by a stage."""

    address: ClassVar[Address] = Address("rpc", "request", "parked", route=("inbox",))

    kind: Literal["parked"] = "parked"
    request_id: str
    attempt: int = 1
    stage: str
    instance: str
    """The replica that holds it; when it falls silent the edge re-sends."""
    reason: str
    held_ms: int | None = None
    """How long it holds it at most; the edge re-sends when it hears nothing within its hop budget after that. None:
    until it answers."""


Reply = Annotated[Decision | Rejection | Parked, Field(discriminator="kind")]
"""Any message that arrives on an edge's inbox."""

REPLY: Final[TypeAdapter[Decision | Rejection | Parked]] = TypeAdapter(Reply)
"""Decodes a reply: `REPLY.validate_json(data)`."""
