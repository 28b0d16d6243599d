"""`RequestScheduled`, from the columns that a decision was made by: every candidate, the filter that removed it, and
the scores of the others."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isnan
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from pointsman_contracts.journey import Journey, StageReport, Target
from pointsman_contracts.scheduling import CandidateColumns, PreludeForecast, ProfileRun, RequestScheduled
from pointsman_plugins.scheduling.arrays import Floats, Ints
from pointsman_plugins.scheduling.fleet import HEARD, KV_USAGE, MATCHED, RUNNING, WAITING
from pointsman_plugins.scheduling.run import Run
from pointsman_plugins.scheduling.worker import NEVER
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.outcome import Scheduled, Sight
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.sticky import STICKY

CANDIDATES_SHOWN: Final = 256
"""Most candidates of one run in an event; further ones are counted. Fewer when the event would be too large."""
_DIGITS: Final = 4
_SUMS_KEPT: Final = 64


class ScheduledEvent(msgspec.Struct, frozen=True, gc=False):
    """A decision, with all fields of its event."""

    journey: Journey
    target: Target
    policy: Policy
    revision: int
    outcome: Scheduled
    took_s: float
    queued_s: float
    report: StageReport
    traceparent: str | None
    at_ms: int
    bound: Bound | None
    """None for a request that didn't wait for its engine."""


def describe_decision(told: ScheduledEvent, source: str, sequence: int, shown: int) -> RequestScheduled:
    """The event, with at most `shown` candidates of each run."""
    journey, outcome, bound = told.journey, told.outcome, told.bound
    facts, selection = journey.request, outcome.selection
    queued_s, degraded = told.queued_s, outcome.reasons
    return RequestScheduled(
        request_id=journey.request_id,
        attempt=journey.attempt,
        source=source,
        sequence=sequence,
        at_ms=told.at_ms,
        edge=journey.edge,
        pool=told.target.pool or "",
        model=journey.model,
        target=told.target,
        profile=journey.profile or "",
        models=journey.models or (),
        primary=selection.primary.profile,
        runs=explain(outcome, shown),
        endpoints=tuple([worker.name for worker in outcome.endpoints]),
        reason=reason(outcome),
        legs=legs(outcome) if selection.legs else {},
        forecast=selection.forecast,
        prelude=_prelude(outcome),
        stream=facts.stream,
        prompt_tokens=facts.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        prefix=outcome.prefix,
        queued_ms=round(queued_s * 1000, 1) if queued_s else 0.0,
        unbound_ms=0.0 if bound is None else round(bound.waited_ms, 1),
        bound_because="" if bound is None else bound.because,
        decided_us=round(told.took_s * 1e6, 1),
        revision=told.revision,
        policy_hash=told.policy.hash,
        seed=outcome.seed,
        level="degraded" if degraded else journey.level,
        reasons=(*journey.reasons, *degraded) if degraded else journey.reasons,
        trail=(*journey.trail, told.report),
    )


def legs(outcome: Scheduled) -> dict[str, str]:
    """The other workers that do a part of the work, by the name of that part."""
    return {leg: outcome.sight.names[run.chosen[0]] for leg, run in outcome.selection.legs.items()}


def explain(outcome: Scheduled, shown: int = CANDIDATES_SHOWN) -> tuple[ProfileRun, ...]:
    """All runs, with at most `shown` candidates of each; the best are kept."""
    sight = outcome.sight
    names = sight.names
    fetched = None if outcome.fetched is None else _fetched(outcome.fetched, names)
    runs: list[ProfileRun] = []
    for run in outcome.runs:
        columns = _columns(run, sight, shown)
        if fetched is not None:
            columns = replace(columns, fetched_tokens=tuple([fetched[worker] for worker in columns.workers]))
        runs.append(
            ProfileRun(
                profile=run.profile,
                chosen=tuple([names[row] for row in run.chosen]),
                error=run.error,
                weights=dict(run.weights),
                candidates=columns,
            )
        )
    return tuple(runs)


def _prelude(outcome: Scheduled) -> PreludeForecast | None:
    """The work of the engine before the prompt; None without any. Of several engines that of the last one."""
    found = None
    for hold in outcome.holds:
        if hold.fetch_ms or hold.load_ms:
            found = PreludeForecast(
                fetched=hold.change.fetched or {}, fetch_ms=round(hold.fetch_ms, 3), load_ms=round(hold.load_ms, 3)
            )
    return found


def _fetched(fetched: Mapping[str, Floats], names: Sequence[str]) -> dict[str, int]:
    """Tokens that each worker would fetch, of all tiers."""
    totals: list[float] = np.add.reduce(list(fetched.values())).tolist()
    return dict(zip(names, map(int, totals), strict=True))


def reason(outcome: Scheduled) -> str:
    """Why the first endpoint won, in one line."""
    run = outcome.selection.primary
    first, chosen = outcome.endpoints[0].name, run.chosen
    if outcome.held:
        return f"{first} holds this request already"
    if run.profile == STICKY:
        return f"{first} serves this session, which stays with it"
    if run.scores is None:
        return f"{first} was picked without scores"
    row = chosen[0]
    if outcome.trial:
        return f"{first} gets this request as a trial: {outcome.trial}"
    *scores, total = map(itemgetter(row if run.candidates.rows is None else _index(run, row)), run.scores)
    words = f"{first} scored {_sum(tuple(run.weights.items())) % (total, *scores)}"
    if row in outcome.sight.opaque:
        words += ", by own counts: it tells no load"
    if len(chosen) > 1:
        words += f"; next {outcome.endpoints[1].name} with {run.scores[-1][_index(run, chosen[1])]:.2f}"
    return words


@lru_cache(_SUMS_KEPT)
def _sum(weights: tuple[tuple[str, float], ...]) -> str:
    """The format of a weighted sum: of the total, then of each score."""
    parts = [f"{name} {weight:g}".replace("%", "%%") + " * %.2f" for name, weight in weights]
    return f"%.2f ({', '.join(parts)})"


def _index(run: Run, row: int) -> int:
    rows = run.candidates.rows
    return row if rows is None else int(np.searchsorted(rows, row))


def _columns(run: Run, sight: Sight, shown: int) -> CandidateColumns:
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
