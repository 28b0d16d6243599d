"""The columns of a few candidates, from lists: 2 us less for eight than by numpy's calls (`python -m
benchmarks.fast_paths`), and 3 % of a whole request, between whose decisions numpy's code leaves the processor's cache.
`candidate_columns` has those of many.
"""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.scheduling import CandidateColumns
from pointsman_plugins.scheduling.run import Run
from pointsman_plugins.scheduling.worker import NEVER
from pointsman_scheduler.domain.outcome import Sight

_SCALE: Final = 1e4
"""Four digits. Rounds as numpy does; Python's `round` with digits differs."""


def describe_few(run: Run, sight: Sight, filtered: dict[str, str], opaque: tuple[str, ...]) -> CandidateColumns:
    """All candidates of a run. `filtered`: why each of those that filters removed isn't there; `opaque`: the workers
    that report no load."""
    now = sight.now
    figures: list[list[float]] = sight.figures.tolist()
    heard, kv_usage, running, waiting, matched = figures
    scores: dict[str, tuple[float | None, ...]] = {}
    totals: tuple[float | None, ...] = ()
    if run.scores is not None:
        rows = run.candidates.rows
        places: list[int] | None = None if rows is None or len(rows) == len(heard) else rows.tolist()
        *columns, totals = [_rounded(column, places, len(heard)) for column in run.scores]
        scores = dict(zip(run.weights, columns, strict=True))
    return CandidateColumns(
        workers=sight.names,
        ages_ms=tuple([-1.0 if at == NEVER else round((now - at) * 10_000.0) / 10.0 for at in heard]),
        running=tuple([int(count) for count in running]),
        waiting=tuple([int(count) for count in waiting]),
        kv_usage=tuple([round(share * _SCALE) / _SCALE for share in kv_usage]),
        matched_tokens=tuple([int(tokens) for tokens in matched]),
        scores=scores,
        totals=totals,
        filtered=filtered,
        opaque=opaque,
    )


def _rounded(column: Sequence[float], places: list[int] | None, count: int) -> tuple[float | None, ...]:
    """A score for each of `count` workers, None for one without. `places`: of the scores; None for all workers."""
    rounded = [round(score * _SCALE) / _SCALE for score in column]
    if places is None:
        return tuple(rounded)
    wide: list[float | None] = [None] * count
    for place, score in zip(places, rounded, strict=True):
        wide[place] = score
    return tuple(wide)
