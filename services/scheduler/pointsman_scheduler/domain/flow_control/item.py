"""A request offered to flow control."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pointsman_plugins.scheduling.flow_control import Demand

T = TypeVar("T")


@dataclass(slots=True, eq=False, kw_only=True)
class Item(Demand, Generic[T]):
    """A request offered to flow control."""

    payload: T
    """The caller's data, returned when the request leaves."""
    late: bool = False
    """Its `deadline` is that of its service level: at that time it is refused as too late."""
    empty_clock: float = 0.0
    """The controller's: seconds that the pool had no endpoint before the request came."""
