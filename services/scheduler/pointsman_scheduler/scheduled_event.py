"""`RequestScheduled`, from the columns that a decision was made by: every candidate, the filter that removed it, and
the scores of the others."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from pointsman_contracts.journey import Journey, StageReport, Target
from pointsman_contracts.scheduling import PreludeForecast, ProfileRun, RequestScheduled
from pointsman_contracts.session import RequestSession, SessionTurn
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.run import Run
from pointsman_scheduler.candidate_columns import describe_candidates
from pointsman_scheduler.domain.flow_control import Unserved
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.sticky import STICKY

CANDIDATES_SHOWN: Final = 256
"""Most candidates of one run in an event; further ones are counted. Fewer when the event would be too large."""
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
    unserved: Unserved | None = None


def describe_decision(
    told: ScheduledEvent, source: str, sequence: int, shown: int, turn: SessionTurn | None = None
) -> RequestScheduled:
    """The event, with at most `shown` candidates of each run."""
    journey, outcome, bound = told.journey, told.outcome, told.bound
    facts, selection = journey.request, outcome.selection
    queued_s, unserved, degraded = told.queued_s, told.unserved, outcome.reasons
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
        prelude=None if outcome.fetched is None and told.target.lora is None else _prelude(outcome),
        stream=facts.stream,
        prompt_tokens=facts.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        prefix=outcome.prefix,
        queued_ms=round(queued_s * 1000, 1) if queued_s else 0.0,
        no_endpoint_ms=0.0 if unserved is None else round(unserved.seconds * 1000, 1),
        no_endpoint="" if unserved is None else unserved.there,
        unbound_ms=0.0 if bound is None else round(bound.waited_ms, 1),
        bound_because="" if bound is None else bound.because,
        decided_us=round(told.took_s * 1e6, 1),
        revision=told.revision,
        policy_hash=told.policy.hash,
        seed=outcome.seed,
        level="degraded" if degraded else journey.level,
        reasons=(*journey.reasons, *degraded) if degraded else journey.reasons,
        trail=(*journey.trail, told.report),
        session=None if facts.session is None else RequestSession.from_facts(facts.session, facts.attributes),
        turn=turn,
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
        columns = describe_candidates(run, sight, shown)
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
