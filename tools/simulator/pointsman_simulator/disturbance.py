"""Sudden changes of an engine in virtual time, of which schedulers get no notice."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

DisturbanceKind: TypeAlias = Literal["slower", "smaller-passes", "wiped", "lies"]
"""`slower`: passes take `factor` times as long. `smaller-passes`: a pass computes a `factor`-th of the tokens. `wiped`:
all blocks that no request uses are gone, and no event says so. `lies`: load reports say that nothing runs or waits."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One change of one engine."""

    at_ms: float
    worker: int
    kind: DisturbanceKind
    factor: float = 1.0
    """Above 0."""
