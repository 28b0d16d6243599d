"""Explains a decision: every candidate, the filter that removed it, and the scores of the others."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np

from pointsman_plugins.scheduling.arrays import FEW, Floats, Ints
from pointsman_plugins.scheduling.fleet import HEARD, KV_USAGE, MATCHED, RUNNING, WAITING
from pointsman_plugins.scheduling.run import Run
from pointsman_plugins.scheduling.worker import NEVER
from pointsman_scheduler.domain.outcome import Scheduled, Sight

CANDIDATES_SHOWN: Final = 256
"""Most candidates of one run in an event; further ones are counted. Fewer when the event would be too large."""
_DIGITS: Final = 4
_SCALE: Final = 10.0**_DIGITS
"""Rounds as numpy does; Python's `round` with digits differs."""

Fields: TypeAlias = Mapping[str, object]
"""Of a model of `pointsman_contracts.scheduling`: what JSON has, and arrays where it has lists of numbers. A message
made of models costs three times as much, and is made only to be encoded."""


class Explained(NamedTuple):
    """The parts of `RequestScheduled` that explain the decision."""

    runs: list[Fields]
    """As `ProfileRun`."""
    reason: str


def explain(outcome: Scheduled, shown: int = CANDIDATES_SHOWN) -> Explained:
    """Explain a decision, with at most `shown` candidates of each run; the best are kept."""
    sight = outcome.sight
    few = len(sight.workers) <= min(shown, FEW)
    runs: list[Fields] = [
        {
            "profile": run.profile,
            "chosen": [sight.names[row] for row in run.chosen],
            "error": run.error,
            "weights": run.weights,
            "candidates": _few(run, sight) if few else _many(run, sight, shown),
        }
        for run in outcome.runs
    ]
    return Explained(runs, _reason(outcome))


def _few(run: Run, sight: Sight) -> Fields:
    """As `CandidateColumns`, for a few workers: each of them."""
    count, now = len(sight.workers), sight.now
    heard, kv_usage, running, waiting, matched = cast("list[list[float]]", sight.figures.tolist())
    scores: Mapping[str, Sequence[float | None]] = {}
    totals: Sequence[float | None] = []
    if run.scores is not None:
        rounded = [[round(score * _SCALE) / _SCALE for score in column] for column in run.scores]
        rows = run.candidates.rows
        *columns, totals = rounded if rows is None else [_in_place(column, _whole(rows), count) for column in rounded]
        scores = dict(zip(run.weights, columns, strict=True))
    return {
        "workers": sight.names,
        "ages_ms": [-1.0 if at == NEVER else round((now - at) * 10_000.0) / 10.0 for at in heard],
        "running": [*map(int, running)],
        "waiting": [*map(int, waiting)],
        "kv_usage": [round(figure * _SCALE) / _SCALE for figure in kv_usage],
        "matched_tokens": [*map(int, matched)],
        "scores": scores,
        "totals": totals,
        "filtered": _filtered(run, sight, None) if run.removed else {},
        "opaque": _opaque(sight, None) if sight.opaque else (),
        "omitted": 0,
    }


def _in_place(column: Sequence[float], places: Sequence[int], count: int) -> list[float | None]:
    """A score for each worker; None for one without."""
    if len(column) == count:
        return [*column]
    wide: list[float | None] = [None] * count
    for place, score in zip(places, column, strict=True):
        wide[place] = score
    return wide


def _many(run: Run, sight: Sight, shown: int) -> Fields:
    """As `CandidateColumns`, for many workers."""
    count = len(sight.workers)
    rows: Ints | None = _best_rows(run, count, shown) if count > shown else None
    scores: dict[str, Floats] = {}
    totals: Floats | tuple[()] = ()
    if run.scores is not None:
        *columns, totals = _spread(np.array(run.scores).round(_DIGITS), run.candidates.rows, count, rows)
        scores = dict(zip(run.weights, columns, strict=True))
    figures = sight.figures if rows is None else sight.figures.take(rows, axis=1)
    heard = figures[HEARD]
    ages = np.rint((sight.now - heard) * 10_000.0) / 10.0
    if NEVER in heard.tolist():
        ages[heard == NEVER] = -1.0
    numbers = figures[RUNNING:].astype(np.int64)
    return {
        "workers": sight.names if rows is None else [sight.names[row] for row in _whole(rows)],
        "ages_ms": ages,
        "running": numbers[0],
        "waiting": numbers[WAITING - RUNNING],
        "kv_usage": figures[KV_USAGE].round(_DIGITS),
        "matched_tokens": numbers[MATCHED - RUNNING],
        "scores": scores,
        "totals": totals,
        "filtered": _filtered(run, sight, rows),
        "opaque": _opaque(sight, rows) if sight.opaque else (),
        "omitted": 0 if rows is None else count - len(rows),
    }


def _filtered(run: Run, sight: Sight, rows: Ints | None) -> dict[str, str]:
    filtered: dict[str, str] = {}
    for removed in run.removed:
        for row in _whole(removed.rows if rows is None else np.intersect1d(removed.rows, rows)):
            worker = sight.workers[row]
            why = removed.why if isinstance(removed.why, str) else removed.why(worker)
            filtered[worker.name] = f"{removed.filter}: {why}"
    return filtered


def _opaque(sight: Sight, rows: Ints | None) -> list[str]:
    shown = sorted(sight.opaque) if rows is None else [row for row in _whole(rows) if row in sight.opaque]
    return [sight.names[row] for row in shown]


def _whole(rows: Ints) -> list[int]:
    return cast("list[int]", rows.tolist())


def _best_rows(run: Run, count: int, shown: int) -> Ints:
    """Fleet rows to show: the choice, the highest totals, then those that filters removed."""
    rank = np.full(count, -np.inf)
    if run.scores is not None:
        rank[run.candidates.indices()] = run.scores[-1]
    rank[run.chosen] = np.inf
    return np.sort(np.argpartition(-rank, shown - 1)[:shown])


def _spread(table: Floats, candidates: Ints | None, count: int, rows: Ints | None) -> Floats:
    """`table` with one column for each worker shown. A worker without a score has NaN, which JSON writes as null;
    scores themselves are never NaN."""
    if candidates is not None:
        wide = np.full((len(table), count), np.nan)
        wide[:, candidates] = table
        table = wide
    return table if rows is None else table.take(rows, axis=1)


def _reason(outcome: Scheduled) -> str:
    run = outcome.selection.primary
    first = outcome.endpoints[0].name
    if outcome.held:
        return f"{first} holds this request already"
    if run.scores is None:
        return f"{first} was picked without scores"
    first_index = run.chosen[0] if run.candidates.rows is None else _index(run, run.chosen[0])
    *scores, total = [float(row[first_index]) for row in run.scores]
    parts = ", ".join(
        [f"{name} {weight:g} * {score:.2f}" for (name, weight), score in zip(run.weights.items(), scores, strict=True)]
    )
    reason = f"{first} scored {total:.2f} ({parts})"
    if run.chosen[0] in outcome.sight.opaque:
        reason += ", by own counts: it tells no load"
    if len(run.chosen) > 1:
        reason += f"; next {outcome.endpoints[1].name} with {run.scores[-1][_index(run, run.chosen[1])]:.2f}"
    return reason


def _index(run: Run, row: int) -> int:
    rows = run.candidates.rows
    return row if rows is None else int(np.searchsorted(rows, row))
