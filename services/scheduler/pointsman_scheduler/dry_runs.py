"""Decides requests that ask for the decision alone: nothing is reserved, counted, published or learnt."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.journey import Journey
from pointsman_contracts.reply import Decision, Rejection
from pointsman_contracts.scheduling import DryRunForecast
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Hop
from pointsman_scheduler.binding import fitting, no_pool, schedule_request, seed_of
from pointsman_scheduler.domain.outcome import Refused
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.foreseen_times import foresee_in_pool
from pointsman_scheduler.scheduled_event import CANDIDATES_SHOWN, ScheduledEvent, describe_decision


class DryRuns:
    """Decides by the configuration revision that each request names."""

    def __init__(
        self,
        configuration: Configuration[Mapping[str, Policy]],
        pools: Pools,
        foresee_wait: Callable[[str, int], float | None],
        instance: str,
    ) -> None:
        """`foresee_wait`: seconds that a request of this priority would wait in flow control of a pool; None: it would
        wait, for an unknown time. `instance`: of this scheduler."""
        self._configuration: Final = configuration
        self._pools: Final = pools
        self._foresee_wait: Final = foresee_wait
        self._instance: Final = instance

    def decide_dry_run(self, journey: Journey, hop: Hop[Journey]) -> Decision | Rejection:
        """The decision that a real request would get now, with its explanation."""
        revision, target = self._configuration.revisions[journey.revision], journey.target
        policy = None if target is None else revision.compiled.get(target.pool or "")
        if target is None or policy is None:
            return hop.refuse(no_pool(journey, revision))
        pool, now = self._pools.of(target.pool or ""), time.monotonic()
        if journey.request.block_tokens != pool.block_tokens and journey.request.blocks:
            journey = fitting(journey, pool.block_tokens)
        facts, began = journey.request, time.perf_counter()
        seed = seed_of(journey.request_id)
        outcome, lacks_room = pool.foresee(schedule_request(journey, target, 0.0), now, seed, policy)
        if isinstance(outcome, Refused):
            return hop.refuse(outcome.refusal)
        told = ScheduledEvent(
            journey=journey,
            target=target,
            policy=policy,
            revision=revision.number,
            outcome=outcome,
            took_s=time.perf_counter() - began,
            queued_s=0.0,
            report=hop.report(note=f"{len(outcome.sight.workers)} workers"),
            traceparent=None,
            at_ms=time.time_ns() // 1_000_000,
            bound=None,
        )
        foreseen = foresee_in_pool(
            pool=pool,
            policy=policy,
            engines=outcome.endpoints[:1],
            facts=facts,
            output=float(facts.max_output_tokens or 0),
            now=now,
        )
        wait_s = self._foresee_wait(pool.pool, facts.priority)
        forecast = DryRunForecast(
            queue_ms=None if wait_s is None else round(wait_s * 1000.0, 1),
            lacks_room=lacks_room,
            ttft_ms=None if foreseen is None else round(foreseen.times.first_token_ms, 1),
            fallbacks=tuple([each.lora or each.model for each in journey.alternatives]),
        )
        event = describe_decision(told, self._instance, 0, CANDIDATES_SHOWN)
        return Decision(
            request_id=journey.request_id,
            attempt=journey.attempt,
            revision=revision.number,
            profile=event.profile,
            model=journey.model,
            target=target,
            endpoints=tuple([worker.endpoint for worker in outcome.endpoints]),
            level=event.level,
            reasons=event.reasons,
            scheduler="",
            explained=replace(event, dry_run=forecast),
        )
