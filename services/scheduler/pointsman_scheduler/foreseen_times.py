"""How long one more request would take in a pool now. Asking changes no state of a pool, so its flight log replays
whether it was asked or not."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_delay.foresight import EngineSight, Foreseen, foresee
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.domain.late_binding.slack import MARGIN
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.serving import may_serve


class ForeseenAnswer(NamedTuple):
    """The times at the engine where the request delays all requests least."""

    worker: Worker
    cached_tokens: int
    times: Foreseen


def time_in_stages(journey: Journey) -> float:
    """Milliseconds that the request has spent in stages. The edge's time of receipt is of another machine's clock."""
    return sum([report.took_ms for report in journey.trail])


def in_time_left(journey: Journey, queued_s: float) -> RequestFacts:
    """The request's facts, with the part of its promised time that is left after `queued_s` in flow control."""
    facts = journey.request
    if facts.slo_ttft_ms is None or not facts.is_promised:
        return facts
    left_ms = facts.slo_ttft_ms - time_in_stages(journey) - queued_s * 1000.0
    return facts.changed(slo_ttft_ms=max(1.0, left_ms))


def serving_engines(pool: PoolScheduler, name: str, now: float) -> list[Worker]:
    """The workers that answer, are healthy, and aren't known to lack this model or adapter."""
    fleet = pool.fleet
    workers = fleet.workers if pool.laid_out else [*fleet.present]
    return [worker for worker in workers if may_serve(fleet, worker, name, now)]


def plans_by_slack(policy: Policy, facts: RequestFacts) -> bool:
    """Whether late binding, rather than flow control, holds a request with these facts back."""
    late = policy.late_binding
    return late is not None and facts.stream and facts.workers is None and late.delays.best.model.was_trusted


def is_too_slow(policy: Policy, engines: Sequence[Worker], facts: RequestFacts) -> float:
    """The predicted milliseconds between the answer's tokens where no engine keeps the promised ones; otherwise, or
    where that isn't known, 0. For a request that late binding holds back until an engine has room for its answer, by
    itself; for others, beside the answers that are there."""
    forecast, itl = policy.forecast, facts.slo_itl_ms
    if itl is None or not facts.slo_class or forecast is None:
        return 0.0
    if not (forecast.best.model.was_trusted and forecast.best.model.knows_decode):
        return 0.0
    alone = facts.is_refused_late and plans_by_slack(policy, facts)
    fastest = min([forecast.step_with(each.life, max(1, facts.prompt_tokens), alone=alone) for each in engines])
    return fastest if fastest > itl else 0.0


def is_foreseen_in_time(pool: PoolScheduler, policy: Policy, facts: RequestFacts, name: str, now: float) -> bool:
    """Whether a request for this model has its first token within its level's time from now, if it waits for its engine
    only. False where that isn't known."""
    engines = serving_engines(pool, name, now)
    if not engines or is_too_slow(policy, engines, facts):
        return False
    output = float(facts.max_output_tokens or 0)
    foreseen = foresee_in_pool(pool=pool, policy=policy, engines=engines, facts=facts, output=output, now=now)
    return foreseen is not None and foreseen.times.first_token_ms * (1.0 + MARGIN) <= (facts.slo_ttft_ms or 0.0)


def foresee_in_pool(
    pool: PoolScheduler, policy: Policy, engines: Sequence[Worker], facts: RequestFacts, output: float, now: float
) -> ForeseenAnswer | None:
    """`engines`: of `serving_engines`, at least one; `facts` have the blocks that the prompt has in this pool;
    `output`: expected tokens of the answer. None while the pool's pass times aren't known well enough.

    Waiting requests don't count before one that late binding refuses when it would be late: it judges that with
    each plan, which may leave another one out instead."""
    if policy.forecast is None:
        return None
    refused = facts.is_refused_late and plans_by_slack(policy, facts)
    matched = _matched(pool, facts)
    planned: dict[str, list[tuple[float, int]]] = {}
    if len(pool.binder) and pool.laid_out:
        due = now * 1000.0 + (facts.slo_ttft_ms or 0.0)
        for waiting in pool.binder.waiting:
            # Requests with a service level go in the order of their due times, before those that are late.
            if facts.is_promised and (refused or waiting.left_out or waiting.latest > due):
                continue
            planned.setdefault(pool.binder.worker_of(waiting), []).append((waiting.uncached, waiting.prompt))
    sights = [
        EngineSight(
            life=worker.life,
            capacity=float(worker.capacity_tokens or np.inf),
            held=0.0 if matched is None else matched.item(worker.row),
            planned=tuple(planned.get(worker.name, ())),
            all_before=facts.is_promised,
        )
        for worker in engines
    ]
    foreseen = foresee(policy.forecast.best, sights, max(1, facts.prompt_tokens), output, now * 1000.0)
    if foreseen is None:
        return None
    best, times = foreseen
    if facts.is_promised and (pace := policy.forecast.paces.of_engine(engines[best].life)) is not None:
        owed = pace.owed_ms(now * 1000.0, policy.forecast.step_with(engines[best].life))
        times = times._replace(first_token_ms=times.first_token_ms + owed, answer_ms=times.answer_ms + owed)
    return ForeseenAnswer(engines[best], int(sights[best].held), times)


def _matched(pool: PoolScheduler, facts: RequestFacts) -> Floats | None:
    """Prompt tokens that each engine holds or would fetch, by row; None while the pool's index isn't laid out for its
    engines: the next decision there does that."""
    if not pool.laid_out or facts.block_tokens != pool.block_tokens:
        return None
    index, blocks = pool.index, np.frombuffer(facts.blocks, np.dtype("<u8"))
    matched = index.match(blocks, facts.block_tokens)
    fetched = index.match_below(blocks, facts.block_tokens, matched) if index.reach else None
    return matched if fetched is None else matched + np.add.reduce(list(fetched.values()))
