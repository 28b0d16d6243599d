"""The part of a scheduling policy that decides whether requests are bound late."""

from dataclasses import dataclass

from pointsman_delay import PassSizeSearch


@dataclass(frozen=True, slots=True, eq=False)
class LateBindingPolicy:
    """Like `config.LateBinding`, with the producer that predicts."""

    delays: PassSizeSearch
    slowdown: float
    most: int
    waits_ms: float
    """How long flow control lets a request wait."""
