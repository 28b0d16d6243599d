"""Publishes that requests wait for a pool in which no engine serves, and orders agents to wake engines that sleep."""

import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Final, TypeVar

from msgspec import Struct

from pointsman_contracts.demand import LONGEST_WAKE_MS, WANTED_AGAIN_MS, PoolWanted, WakeOrder
from pointsman_contracts.worker import WorkerRegistration
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.flow_control import Drop, FlowController
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.waking import WakeOrders
from pointsman_scheduler.metrics import SchedulerMetrics

CHANGED_GAP_S: Final = 0.5
"""Shortest time between two events about one pool while requests wait."""
SERVED: Final = "served"
_ENDS: Final = {Drop.NO_ENDPOINTS: "timed_out", Drop.EXPIRED: "timed_out"}

T = TypeVar("T")

_log = Log("demand")


class _Demand(Struct):
    since_ms: int
    tried_at: float
    there: str
    published: bool


class DemandPublisher:
    """Call `observe_queue` whenever a pool's waiting requests may have changed, and every few milliseconds while some
    wait."""

    def __init__(self, bus: Bus, metrics: SchedulerMetrics) -> None:
        self._bus: Final = bus
        self._metrics: Final = metrics
        self._open: Final[dict[str, _Demand]] = {}
        """Pools that requests wait for now."""
        self._orders: Final[defaultdict[str, WakeOrders]] = defaultdict(WakeOrders)
        self._failing: Final[set[tuple[str, str]]] = set()
        """Pool and worker of engines whose failure to wake was logged."""
        self._sequences: Final[defaultdict[str, Iterator[int]]] = defaultdict(partial(count, 1))

    def observe_queue(self, pool: PoolScheduler, flow: FlowController[T], now: float, last: Drop | None) -> None:
        """`last`: why the last request that left the queue was dropped; None where it went to an engine."""
        name, demand = pool.pool, self._open.get(pool.pool)
        if not flow.unserved:
            if demand is not None:
                self._close(pool, demand, now, SERVED if flow.waiting or last is None else _describe_end(last))
            return
        orders, wake = self._orders[name], flow.policy.settings.wake
        if wake.enabled:
            due, failed = orders.choose_orders(pool.fleet.workers, flow.unserved, now, wake)
            for worker in due:
                self._publish_order(worker.registration, wake.serve_within)
            for worker, why in failed.items():
                self._note_failure(name, worker, why)
        there = flow.there
        if demand is None:
            demand = self._open[name] = _Demand(_unix_ms(), now, there, published=False)
            _log.info("pool_wanted", pool=name, there=there, wake=wake.enabled)
        elif not _is_due(demand, there, now):
            return
        demand.tried_at, demand.there = now, there
        oldest = flow.find_oldest()
        demand.published = self._publish(
            PoolWanted(
                source=self._bus.process.instance,
                sequence=next(self._sequences[name]),
                at_ms=_unix_ms(),
                pool=name,
                since_ms=demand.since_ms,
                waiting=flow.unserved,
                oldest_ms=0 if oldest is None else round((now - oldest) * 1000),
                there=there,
                asleep=_count_asleep(pool),
                ordered=orders.pending,
            )
        )

    def _close(self, pool: PoolScheduler, demand: _Demand, now: float, ended: str) -> None:
        name = pool.pool
        del self._open[name]
        for worker in self._orders[name].close_demand(pool.fleet.workers, now):
            self._failing.discard((name, worker))
            self._metrics.wake_orders.labels(name, SERVED).inc()
        _log.info("pool_not_wanted", pool=name, ended=ended, after_ms=_unix_ms() - demand.since_ms)
        self._publish(
            PoolWanted(
                source=self._bus.process.instance,
                sequence=next(self._sequences[name]),
                at_ms=_unix_ms(),
                pool=name,
                since_ms=demand.since_ms,
                waiting=0,
                there=demand.there,
                asleep=_count_asleep(pool),
                ended=ended,
            )
        )

    def _publish(self, event: PoolWanted) -> bool:
        try:
            self._bus.publish(event, event.pool)
        except BusError as error:
            self._metrics.unpublished.labels(PoolWanted.__name__).inc()
            _log.debug("unpublished", reason=str(error))
            return False
        return True

    def _publish_order(self, engine: WorkerRegistration, within_s: float) -> None:
        order = WakeOrder(boot_id=engine.boot_id, within_ms=min(LONGEST_WAKE_MS, max(1, round(within_s * 1000))))
        try:
            # The ranks of an engine have one agent, and wake together.
            self._bus.publish(order, engine.pool, engine.server or engine.worker)
        except BusError as error:
            self._metrics.unpublished.labels(WakeOrder.__name__).inc()
            _log.debug("unpublished", reason=str(error))  # the next one comes in a second
        else:
            self._metrics.wake_orders.labels(engine.pool, "ordered").inc()

    def _note_failure(self, pool: str, worker: str, why: str) -> None:
        self._metrics.wake_orders.labels(pool, "failed").inc()
        if (pool, worker) not in self._failing:
            self._failing.add((pool, worker))
            _log.warning("engine_not_woken", pool=pool, worker=worker, reason=why)


def _is_due(demand: _Demand, there: str, now: float) -> bool:
    changed = there != demand.there or not demand.published
    return now - demand.tried_at >= (CHANGED_GAP_S if changed else WANTED_AGAIN_MS / 1000)


def _describe_end(last: Drop) -> str:
    """`PoolWanted.ended`."""
    return _ENDS.get(last, last.name.lower())


def _count_asleep(pool: PoolScheduler) -> int:
    return sum(worker.state == "asleep" for worker in pool.fleet.workers)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
