"""The reason that a scheduling profile didn't choose the worker that would have cost least: docs/regret.md."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

BEST: Final = ""
"""No candidate would have cost less."""
LATE_BINDING: Final = "late-binding"
PICKER: Final = "picker"
TIE: Final = "tie"
_ALIKE: Final = 1e-4
"""Totals in events have four digits."""


class RunColumns(NamedTuple):
    """The part of a `ProfileRun` that a judgement needs; columns as of `CandidateColumns`."""

    profile: str
    chosen: str
    weights: Mapping[str, float]
    scores: Mapping[str, Sequence[float | None]]
    totals: Sequence[float | None]
    filtered: Mapping[str, str]


def reason(run: RunColumns, chosen: int, best: int, *, bound: bool) -> str:
    """Why `chosen` and not `best`, both indexes of the columns. `bound`: the request waited for its engine, and the run
    is the one that was used."""
    if not run.totals:
        return PICKER
    here, there = run.totals[chosen], run.totals[best]
    if here is None or there is None:
        return PICKER
    if here < there - _ALIKE:
        return LATE_BINDING if bound else PICKER
    gains = {
        name: run.weights.get(name, 1.0) * (mine - other)
        for name, scores in run.scores.items()
        if (mine := scores[chosen]) is not None and (other := scores[best]) is not None
    }
    name = max(gains, key=lambda scorer: gains[scorer], default="")
    return f"scorer:{name}" if name and gains[name] > _ALIKE else TIE


def filter_of(words: str) -> str:
    """The filter's name in `<filter>: <reason>`."""
    return words.partition(": ")[0]
