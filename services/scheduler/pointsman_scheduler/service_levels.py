"""Holds requests to their service levels before they enter a pool: one that would be late is served late, refused, or
sent to another model, as its level says."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.journey import Journey, RequestFacts, Target, retold
from pointsman_contracts.service_level import REFUSE, SERVE
from pointsman_core.settled_target import settled
from pointsman_hosting.configuration import Configuration
from pointsman_runtime.telling.counting import Counter
from pointsman_scheduler.domain.lateness import PROBE_EVERY_S, refuse_late, refuse_slow
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.foreseen_times import foresee_in_pool, is_too_slow, serving_engines, time_in_stages


class ServiceLevels:
    """Predicts by each pool's delay model and queue. Where the time is unknown, the request goes on."""

    def __init__(
        self,
        configuration: Configuration[Mapping[str, Policy]],
        pools: Pools,
        late: Counter,
        foresee_wait: Callable[[str, int], float | None],
    ) -> None:
        """`late`: requests that were predicted to be late, by pool, level, and what became of them; `foresee_wait`: the
        seconds that a request of this priority will wait in flow control of a pool, None when unknown."""
        self._configuration: Final = configuration
        self._pools: Final = pools
        self._late: Final = late
        self._foresee_wait: Final = foresee_wait
        self._tested_at: dict[str, float] = {}
        """Pool → when a request that may be refused last went on, or when the first one was refused."""

    def hold_to_level(self, journey: Journey) -> Journey:
        """The journey, for another model if only that is in time. Raises Refusal 429 where the level says so."""
        facts, target = journey.request, journey.target
        if target is None or journey.attempt > 1 or facts.workers is not None:
            return journey
        if facts.slo_ttft_ms is None and facts.slo_itl_ms is None:
            return journey
        passed_ms = time_in_stages(journey)
        left_ms = math.inf if facts.slo_ttft_ms is None else facts.slo_ttft_ms - passed_ms
        predicted_ms, token_ms = self._foresee_times(journey, target, facts)
        pool, now = target.pool or "", time.monotonic()
        # A dry run neither tests the prediction nor puts the next test off.
        tested_at = {} if facts.dry_run else self._tested_at
        if predicted_ms is None or (predicted_ms <= left_ms and not token_ms):
            tested_at[pool] = now
            return journey
        if facts.slo_late == REFUSE and now - tested_at.setdefault(pool, now) >= PROBE_EVERY_S:
            tested_at[pool] = now
            return journey
        if facts.slo_late == REFUSE:
            self._count_late(pool, facts, "refused")
            raise refuse_slow(facts, token_ms) if token_ms else refuse_late(facts, passed_ms + predicted_ms)
        for alternative in journey.alternatives if facts.slo_late != SERVE else ():
            moved = self._moved_to(journey, alternative, left_ms, pool)
            if moved is not None:
                self._count_late(pool, facts, "spilled")
                return moved
        return journey

    def _count_late(self, pool: str, facts: RequestFacts, outcome: str) -> None:
        if not facts.dry_run:
            self._late.labels(pool, facts.slo_class, outcome).inc()

    def _moved_to(self, journey: Journey, target: Target, left_ms: float, spilled_from: str) -> Journey | None:
        """The journey for this model if it is in time there. A provider's times aren't predicted: it is asked."""
        pool = None if target.pool is None else self._pools.get(target.pool)
        changes = settled(journey, target, None if pool is None else pool.block_tokens)
        if target.provider is None:
            predicted_ms, token_ms = self._foresee_times(journey, target, changes.get("request", journey.request))
            if predicted_ms is None or predicted_ms > left_ms or token_ms:
                return None
        changes["request"] = replace(changes.get("request", journey.request), slo_spilled_from=spilled_from)
        changes["alternatives"] = tuple([other for other in journey.alternatives if other != target])
        changes["headers"] = retold(journey.headers, target)
        return journey.changed(**changes)

    def _foresee_times(self, journey: Journey, target: Target, facts: RequestFacts) -> tuple[float | None, float]:
        """Milliseconds from now to the first token, None when unknown; and those between tokens, if they are too long,
        see `is_too_slow`."""
        pool = self._pools.get(target.pool or "")
        policy = self._configuration.revisions[journey.revision].compiled.get(target.pool or "")
        if pool is None or policy is None:
            return None, 0.0
        now = time.monotonic()
        engines = serving_engines(pool, target.lora or target.model, now)
        wait_s = self._foresee_wait(pool.pool, facts.priority)
        if not engines or wait_s is None:
            return None, 0.0
        output = float(facts.max_output_tokens or 0)
        foreseen = foresee_in_pool(pool=pool, policy=policy, engines=engines, facts=facts, output=output, now=now)
        first_ms = None if foreseen is None else wait_s * 1000.0 + foreseen.times.first_token_ms
        return first_ms, is_too_slow(policy, engines, facts)
