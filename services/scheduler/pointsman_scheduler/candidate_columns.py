"""The candidates of one run in columns: what each reported, its scores, and the filter that removed it."""

from math import isnan
from typing import Final

import numpy as np

from pointsman_contracts.scheduling import CandidateColumns
from pointsman_plugins.scheduling.arrays import Floats, Ints
from pointsman_plugins.scheduling.fleet import HEARD, KV_USAGE, MATCHED, RUNNING, WAITING
from pointsman_plugins.scheduling.run import Run
from pointsman_plugins.scheduling.worker import NEVER
from pointsman_scheduler.domain.outcome import Sight
from pointsman_scheduler.few_columns import describe_few

LISTED: Final = 12
"""Up to this many workers, `describe_few` costs less."""
_DIGITS: Final = 4


def describe_candidates(run: Run, sight: Sight, shown: int) -> CandidateColumns:
    """At most `shown` candidates, the best of them."""
    if len(sight.names) > min(LISTED, shown):
        return _many(run, sight, shown)
    filtered = _filtered(run, sight, None) if run.removed else {}
    return describe_few(run, sight, filtered, _opaque(sight, None) if sight.opaque else ())


def _many(run: Run, sight: Sight, shown: int) -> CandidateColumns:
    count = len(sight.workers)
    rows: Ints | None = _best_rows(run, count, shown) if count > shown else None
    scores: dict[str, tuple[float | None, ...]] = {}
    totals: tuple[float | None, ...] = ()
    if run.scores is not None:
        *columns, totals = _spread(np.array(run.scores).round(_DIGITS), run.candidates.rows, count, rows)
        scores = dict(zip(run.weights, columns, strict=True))
    figures = sight.figures if rows is None else sight.figures.take(rows, axis=1)
    heard = figures[HEARD]
    ages = np.rint((sight.now - heard) * 10_000.0) / 10.0
    if NEVER in heard.tolist():
        ages[heard == NEVER] = -1.0
    numbers = figures[RUNNING:].astype(np.int64)
    return CandidateColumns(
        workers=sight.names if rows is None else tuple([sight.names[row] for row in _whole(rows)]),
        ages_ms=tuple(ages.tolist()),
        running=tuple(numbers[0].tolist()),
        waiting=tuple(numbers[WAITING - RUNNING].tolist()),
        kv_usage=tuple(figures[KV_USAGE].round(_DIGITS).tolist()),
        matched_tokens=tuple(numbers[MATCHED - RUNNING].tolist()),
        scores=scores,
        totals=totals,
        filtered=_filtered(run, sight, rows) if run.removed else {},
        opaque=_opaque(sight, rows) if sight.opaque else (),
        omitted=0 if rows is None else count - len(rows),
    )


def _filtered(run: Run, sight: Sight, rows: Ints | None) -> dict[str, str]:
    filtered: dict[str, str] = {}
    for removed in run.removed:
        for row in _whole(removed.rows if rows is None else np.intersect1d(removed.rows, rows)):
            worker = sight.workers[row]
            why = removed.why if isinstance(removed.why, str) else removed.why(worker)
            filtered[worker.name] = f"{removed.filter}: {why}"
    return filtered


def _opaque(sight: Sight, rows: Ints | None) -> tuple[str, ...]:
    shown = sorted(sight.opaque) if rows is None else [row for row in _whole(rows) if row in sight.opaque]
    return tuple([sight.names[row] for row in shown])


def _whole(rows: Ints) -> list[int]:
    return rows.tolist()


def _best_rows(run: Run, count: int, shown: int) -> Ints:
    """Fleet rows to show: the choice, the highest totals, then those that filters removed."""
    rank = np.full(count, -np.inf)
    if run.scores is not None:
        rank[run.candidates.indices()] = run.scores[-1]
    rank[run.chosen] = np.inf
    return np.sort(np.argpartition(-rank, shown - 1)[:shown])


def _spread(table: Floats, candidates: Ints | None, count: int, rows: Ints | None) -> list[tuple[float | None, ...]]:
    """The rows of `table`, with one column for each worker shown. A worker without a score has None."""
    if candidates is not None:
        wide = np.full((len(table), count), np.nan)
        wide[:, candidates] = table
        table = wide
    shown: list[list[float]] = (table if rows is None else table.take(rows, axis=1)).tolist()
    if candidates is None:
        return [tuple(row) for row in shown]
    return [tuple([None if isnan(score) else score for score in row]) for row in shown]
