"""A request as flow control sees it."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Demand:
    """What a request asks for. Times are seconds of one monotonic clock."""

    request: Hashable
    """What it is known by: equal for a request that is offered again, and for no other."""
    offered_at: float
    flow: str = ""
    """Shares its band's turns with other flows."""
    priority: int = 0
    """Higher goes first."""
    size: int = 0
    """Bytes of the body."""
    prefill_tokens: int = 0
    """Prompt tokens that an engine will have to compute."""
    output_tokens: int = 0
    """Expected output; 0 when unknown."""
    deadline: float = math.inf
    """After this nobody waits for the answer."""
    slo_ttft_s: float | None = None
    """Seconds to the first token that the client hopes for."""
    weight: float = 1.0
    """How much its waiting costs, relative to others; above 0."""


@dataclass(slots=True, eq=False, kw_only=True)
class Item(Demand, Generic[T]):
    """A request offered to flow control."""

    payload: T
    """What the caller needs to go on with it."""
