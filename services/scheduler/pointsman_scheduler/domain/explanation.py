"""A decision as everybody may read it: every candidate, why filters took some away, how the others scored."""

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import numpy as np

from pointsman_contracts.scheduling import CandidateColumns, ProfileRun
from pointsman_scheduler.domain.arrays import Floats, Ints
from pointsman_scheduler.domain.fleet import HEARD, KV_USAGE, RUNNING, WAITING
from pointsman_scheduler.domain.outcome import MATCHED, Run, Scheduled, Sight
from pointsman_scheduler.domain.worker import NEVER

CANDIDATES_SHOWN: Final = 256
"""Most candidates of one run in an event; further ones are counted. Fewer when the event would be too big."""
_DIGITS: Final = 4


class Explained(NamedTuple):
    """The parts of `RequestScheduled` that say why."""

    runs: tuple[ProfileRun, ...]
    reason: str


def explain(outcome: Scheduled, shown: int = CANDIDATES_SHOWN) -> Explained:
    """Put a decision in words and columns, with at most `shown` candidates of each run, the best first to stay."""
    runs = tuple([_run(run, outcome.sight, shown) for run in outcome.runs])
    return Explained(runs, _reason(outcome))


def _run(run: Run, sight: Sight, shown: int) -> ProfileRun:
    return ProfileRun(
        profile=run.profile,
        chosen=tuple([sight.names[row] for row in run.chosen]),
        error=run.error,
        weights=dict(run.weights),
        candidates=_columns(run, sight, shown),
    )


def _columns(run: Run, sight: Sight, shown: int) -> CandidateColumns:
    count = len(sight.workers)
    rows: Ints | None = _best_rows(run, count, shown) if count > shown else None
    scores: dict[str, tuple[float | None, ...]] = {}
    totals: tuple[float | None, ...] = ()
    if run.scores is not None:
        *columns, totals = _spread(run.scores.round(_DIGITS), run.candidates.rows, count, rows)
        scores = dict(zip(run.weights, columns, strict=True))
    filtered: dict[str, str] = {}
    for removed in run.removed:
        for row in _whole(removed.rows if rows is None else np.intersect1d(removed.rows, rows)):
            worker = sight.workers[row]
            why = removed.why if isinstance(removed.why, str) else removed.why(worker)
            filtered[worker.name] = f"{removed.filter}: {why}"
    figures = sight.figures if rows is None else sight.figures[:, rows]
    heard, kv_usage = cast("list[list[float]]", figures[HEARD : KV_USAGE + 1].round(_DIGITS).tolist())
    numbers: list[list[int]] = figures[RUNNING:].astype(np.int64).tolist()
    return CandidateColumns(
        workers=sight.names if rows is None else tuple([sight.names[row] for row in _whole(rows)]),
        ages_ms=tuple([round((sight.now - at) * 1000.0, 1) if at > NEVER else -1.0 for at in heard]),
        running=tuple(numbers[0]),
        waiting=tuple(numbers[WAITING - RUNNING]),
        kv_usage=tuple(kv_usage),
        matched_tokens=tuple(numbers[MATCHED - RUNNING]),
        scores=scores,
        totals=totals,
        filtered=filtered,
        opaque=tuple([sight.names[row] for row in sorted(sight.opaque)]) if sight.opaque else (),
        omitted=0 if rows is None else count - len(rows),
    )


def _whole(rows: Ints) -> list[int]:
    return cast("list[int]", rows.tolist())


def _best_rows(run: Run, count: int, shown: int) -> Ints:
    """Fleet rows to show: the choice, the highest totals, then those that filters removed."""
    rank = np.full(count, -np.inf)
    if run.scores is not None:
        rank[run.candidates.indices()] = run.scores[-1]
    rank[run.chosen] = np.inf
    return np.sort(np.argpartition(-rank, shown - 1)[:shown])


def _spread(table: Floats, candidates: Ints | None, count: int, rows: Ints | None) -> list[tuple[float | None, ...]]:
    """Rows of `table`, one entry for each candidate, as columns with one entry for each worker shown."""
    if candidates is None:
        return [tuple(values) for values in (table if rows is None else table[:, rows]).tolist()]
    wide = np.full((len(table), count), np.nan)
    wide[:, candidates] = table
    shown: Sequence[Sequence[float]] = (wide if rows is None else wide[:, rows]).tolist()
    # NaN stands for a worker without a score only here: scores are never NaN.
    return [tuple([None if value != value else value for value in values]) for values in shown]


def _reason(outcome: Scheduled) -> str:
    run = outcome.selection.primary
    first = outcome.endpoints[0].name
    if outcome.held:
        return f"{first} holds this request already"
    if run.scores is None:
        return f"{first} was picked without scores"
    *scores, total = run.scores[:, _index(run, run.chosen[0])].tolist()
    parts = ", ".join(
        [f"{name} {weight:g} * {score:.2f}" for (name, weight), score in zip(run.weights.items(), scores, strict=True)]
    )
    reason = f"{first} scored {total:.2f} ({parts})"
    if run.chosen[0] in outcome.sight.opaque:
        reason += ", by own counts: it tells no load"
    if len(run.chosen) > 1:
        reason += f"; next {outcome.endpoints[1].name} with {run.scores[-1, _index(run, run.chosen[1])]:.2f}"
    return reason


def _index(run: Run, row: int) -> int:
    rows = run.candidates.rows
    return row if rows is None else int(np.searchsorted(rows, row))
