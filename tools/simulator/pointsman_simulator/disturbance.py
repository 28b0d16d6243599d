"""Sudden changes of an engine in virtual time. Schedulers get notice only of engines that come and go."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

DisturbanceKind: TypeAlias = Literal["slower", "smaller-passes", "wiped", "lies", "lost", "joins"]
"""`slower`: passes take `factor` times as long. `smaller-passes`: a pass computes a `factor`-th of the tokens. `wiped`:
all blocks that no request uses are gone, and no event says so. `lies`: load reports say that nothing runs or waits.
`lost`: the engine is gone, and its open requests are sent again. `joins`: the engine isn't there before."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One change of one engine."""

    at_ms: float
    worker: int
    kind: DisturbanceKind
    factor: float = 1.0
    """Above 0."""
