"""The ends of requests, read for schedulers, collectors and preprocessors: every one of them reads every end.

These classes have the part of `ResponseCompleted` that they use. msgspec reads it in a quarter of the time of the whole
event.
"""

from typing import Annotated, Final

import msgspec

from pointsman_contracts.part_reader import part_reader
from pointsman_contracts.response import Attempt, ResponseCompleted, Usage


class EndTarget(msgspec.Struct, frozen=True, gc=False):
    """Part of `Target`."""

    model: str
    pool: str | None = None
    provider: str | None = None
    lora: str | None = None
    base: str | None = None


class EndAttempt(msgspec.Struct, frozen=True, gc=False):
    """Part of `Attempt`."""

    worker: str
    outcome: str
    status: int | None = None
    target: EndTarget | None = None
    limited_until_ms: int | None = None
    remaining: float | None = None


class EndUsage(msgspec.Struct, frozen=True, gc=False):
    """Part of `Usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False


class EndIdentity(msgspec.Struct, frozen=True, gc=False):
    """Part of `Identity`."""

    tenant: str = ""


class EndOfRequest(msgspec.Struct, frozen=True, gc=False):
    """Part of `ResponseCompleted`, with the same names."""

    request_id: str
    source: str
    sequence: int
    at_ms: int
    pool: str
    status: int
    outcome: str
    worker: str | None = None
    model: str | None = None
    target: EndTarget | None = None
    stream: bool = False
    level: str = "full"
    attempts: tuple[EndAttempt, ...] = ()
    decided_ms: float = 0.0
    ttft_ms: float | None = None
    duration_ms: float = 0.0
    usage: EndUsage | None = None
    answers: Annotated[int, msgspec.Meta(ge=1)] = 1
    answered_by: str | None = None


class ChargedEnd(EndOfRequest, frozen=True, gc=False):
    """With what limits need besides, to settle what the request was charged."""

    served: str | None = None
    identity: EndIdentity | None = None


AnyEnd = ResponseCompleted | EndOfRequest
"""An end as a service of the same process published it, or as read from the bus."""
AnyChargedEnd = ResponseCompleted | ChargedEnd
AnyAttempt = Attempt | EndAttempt
AnyUsage = Usage | EndUsage

read_end: Final = part_reader(EndOfRequest, ResponseCompleted.decode)
"""An end as it arrived. Raises `pydantic.ValidationError`."""
read_charged_end: Final = part_reader(ChargedEnd, ResponseCompleted.decode)
"""The same for limits."""
