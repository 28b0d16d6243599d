"""This scheduler's knowledge of a pool's engines, for people who look at it: computed when it is asked for."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from pointsman_contracts.fleet import FleetQuery, FleetView
from pointsman_scheduler.domain.flow_control import Figures
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.plugins.filters.healthy import ailment
from pointsman_scheduler.plugins.producers.delay import DelayPrediction


class FleetViews:
    """Answers `FleetQuery`."""

    def __init__(
        self,
        instance: str,
        pools: Pools,
        policy: Callable[[str], Policy | None],
        figures: Callable[[], Iterable[tuple[str, Figures]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy`: the current one of a pool; `figures`: of the requests that wait, by pool."""
        self._instance: Final = instance
        self._pools: Final = pools
        self._policy: Final = policy
        self._figures: Final = figures
        self._clock: Final = clock

    def answer_query(self, query: FleetQuery) -> FleetView:
        """The view of a pool; without workers for an unknown one."""
        pool = self._pools.get(query.pool)
        if pool is None:
            return FleetView(scheduler=self._instance, pool=query.pool)
        fleet, now = pool.fleet, self._clock()
        fleet.refresh(now)
        workers = fleet.workers
        speeds, prefill, step = self._learnt(pool)
        return FleetView(
            scheduler=self._instance,
            pool=query.pool,
            workers=tuple(worker.name for worker in workers),
            open=tuple(worker.open for worker in workers),
            prefix_blocks=tuple(pool.index.held(worker.life) for worker in workers),
            speeds=speeds,
            ignored={worker.name: why for worker in workers if (why := ailment(worker, now)) is not None},
            block_tokens=self._pools.block_tokens(query.pool),
            queued=sum(figures.requests for name, figures in self._figures() if name == query.pool),
            unbound=len(pool.binder),
            prefill_tokens_s=prefill,
            step_ms=step,
        )

    def _learnt(self, pool: PoolScheduler) -> tuple[tuple[float, ...], float | None, float | None]:
        """Speeds of the workers, prompt tokens in a second, and milliseconds of a decode step."""
        policy = self._policy(pool.pool)
        for producer in policy.producers if policy is not None else ():
            if isinstance(producer, DelayPrediction):
                estimator, rates = producer.estimator.best, producer.estimator.best.model.rates
                speeds = tuple(estimator.speeds) if producer.laid_out(pool.fleet.epoch) else ()
                if not estimator.model.is_trusted:
                    return speeds, None, None
                tokens = estimator.batch_tokens
                pass_ms = rates.prefill + tokens * (rates.linear + rates.square * tokens)
                return speeds, 1000.0 * tokens / pass_ms if pass_ms else None, rates.decode + rates.batch
        return (), None, None
