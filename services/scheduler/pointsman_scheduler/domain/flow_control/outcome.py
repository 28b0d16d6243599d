"""The ways in which a request leaves flow control, and the response to its client (status codes: llm-d-router 0.10)."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from pointsman_contracts.service_level import UNATTAINABLE
from pointsman_core.refusal import Refusal
from pointsman_scheduler.domain.flow_control.item import Item

T = TypeVar("T")


class Drop(Enum):
    """A reason to drop a request: status, OpenAI's type and code, `x-pointsman-dropped-reason`, message."""

    SATURATED = (
        429,
        "rate_limit_error",
        "saturated",
        "rejected-saturated",
        "The pool is saturated and its queue for this priority is full; retry later.",
    )
    EXPIRED = (
        429,
        "rate_limit_error",
        "queue_timeout",
        "rejected-ttl-expired",
        "The request timed out in queue: the pool stayed saturated; retry later.",
    )
    NO_ENDPOINTS = (
        503,
        "server_error",
        "no_endpoints",
        "rejected-no-endpoints",
        "The pool has no endpoint and none came while the request waited; retry later.",
    )
    DEADLINE = (
        504,
        "server_error",
        "deadline_exceeded",
        "rejected-deadline-exceeded",
        "The request's deadline passed while it waited for an endpoint.",
    )
    LATE = (
        429,
        "rate_limit_error",
        UNATTAINABLE,
        "rejected-slo-unattainable",
        "The time to the first token that the request's service level allows passed while it waited for an endpoint; "
        "retry later.",
    )
    CANCELLED = (
        503,
        "server_error",
        "client_disconnected",
        "rejected-context-cancelled",
        "The client disconnected while the request waited.",
    )
    SHUTTING_DOWN = (
        503,
        "server_error",
        "shutting_down",
        "rejected-shutting-down",
        "The scheduler that held the request is shutting down; retry.",
    )

    def build_refusal(self, retry_after_s: float, detail: str = "") -> Refusal:
        """The error that the edge returns to its client. `detail` stands for its message."""
        status, kind, code, reason, message = self.value
        message = detail or message
        return Refusal(status, message, type=kind, code=code, retry_after_s=retry_after_s, dropped_reason=reason)


class Unserved(NamedTuple):
    """The part of a wait in which the pool had no endpoint."""

    seconds: float
    there: str
    """`PoolWanted.there` at the end of it."""


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[T]):
    """The request goes to an engine now: choose one."""

    item: Item[T]
    queued_s: float
    unserved: Unserved | None = None
    """None where the pool had an endpoint all the time."""


@dataclass(frozen=True, slots=True)
class Parked(Generic[T]):
    """The request waits here; `wake` or `cancel` ends the wait."""

    item: Item[T]
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped(Generic[T]):
    """The request is dropped."""

    item: Item[T]
    drop: Drop
    refusal: Refusal
    queued_s: float


SATURATED_WORDS: Final = "the pool is saturated"
EMPTY_WORDS: Final = "the pool has no endpoint"
ASLEEP_WORDS: Final = "all engines of the pool sleep"
NONE: Final = "none"
ASLEEP: Final = "asleep"
"""Values of `PoolWanted.there`."""


def describe_missing(asleep: int, waited_s: float) -> str:
    """The message to the client of a request that no engine came for."""
    waited = f" in the {waited_s:.0f} s that the request waited" if waited_s >= 1 else ""
    if not asleep:
        return f"The pool has no endpoint and none came{waited}; retry later."
    engines = "1 engine of the pool sleeps" if asleep == 1 else f"{asleep} engines of the pool sleep"
    return f"{engines}, none serves, and none was awake{waited}; retry later."
