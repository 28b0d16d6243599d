"""Prometheus metrics of the scheduler. Children are bound once for each pool."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_runtime.telling.counting import Counter, Histogram
from pointsman_scheduler.domain.flow_control import Figures
from pointsman_scheduler.domain.pool import PoolScheduler

_DECISION_SECONDS: Final = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
_UNBOUND_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_QUEUED_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)


class PoolMetrics:
    """The children of one pool."""

    def __init__(self, parent: "SchedulerMetrics", pool: str) -> None:
        self.decided: Final = parent.requests.labels(pool, "scheduled")
        self.held: Final = parent.requests.labels(pool, "held")
        self.took: Final = parent.seconds.labels(pool).observe
        self.ignored: Final = parent.ignored.labels(pool).inc
        self.released: Final = parent.released.labels(pool).inc
        self.moved: Final = parent.moved.labels(pool).inc
        self.count_stops: Final = parent.background_stops.labels(pool).inc
        self.parked: Final = parent.parked.labels(pool).inc
        self.queued: Final = parent.queued_seconds.labels(pool).observe
        self._bound: Final = parent.bound
        self._unbound_seconds: Final = parent.unbound_seconds.labels(pool).observe
        self._requests: Final = parent.requests
        self._drops: Final = parent.dropped
        self._pool: Final = pool

    def count_refusal(self, code: str) -> None:
        """A request ended here; `code` is one of a handful."""
        self._requests.labels(self._pool, code).inc()

    def count_late_binding(self, because: str, waited_s: float) -> None:
        """A request goes to an engine that it waited for; `because` is one of a handful."""
        self._bound.labels(self._pool, because).inc()
        self._unbound_seconds(waited_s)

    def count_drop(self, reason: str) -> None:
        """A request ended while it waited; `reason` is one of a handful."""
        self._drops.labels(self._pool, reason).inc()


class SchedulerMetrics:
    """Counts events as they happen; gauges are read from the pools at each scrape."""

    def __init__(self, registry: CollectorRegistry, pools: Callable[[], Iterable[PoolScheduler]]) -> None:
        self.requests: Final = Counter(
            "pointsman_scheduler_requests",
            "Requests by outcome: scheduled, held (sent again, already on the books), or the code of the refusal",
            ["pool", "outcome"],
            registry=registry,
        )
        self.models_chosen: Final = Counter(
            "pointsman_scheduler_models_chosen",
            "Requests whose model was chosen together with the engine, by model and source of its time: predicted, "
            "measured or unknown",
            ["model", "time"],
            registry=registry,
        )
        self.late: Final = Counter(
            "pointsman_scheduler_late",
            "Requests whose first token was predicted too late for their service level, by level and by what became of "
            "them: refused, spilled to another model, or served",
            ["pool", "class", "outcome"],
            registry=registry,
        )
        self.seconds: Final = Histogram(
            "pointsman_scheduler_decision_seconds",
            "Time that a decision takes",
            ["pool"],
            buckets=_DECISION_SECONDS,
            registry=registry,
        )
        self.ignored: Final = Counter(
            "pointsman_scheduler_peer_changes_ignored",
            "Changes from other schedulers that came too late to count",
            ["pool"],
            registry=registry,
        )
        self.released: Final = Counter(
            "pointsman_scheduler_reservations_reconciled",
            "Reservations released because their edge no longer knew them or was gone",
            ["pool"],
            registry=registry,
        )
        self.moved: Final = Counter(
            "pointsman_scheduler_moved",
            "Requests that edges moved off a worker that didn't answer, as this scheduler asked",
            ["pool"],
            registry=registry,
        )
        self.background_stops: Final = Counter(
            "pointsman_scheduler_background_stops",
            "Background requests that left their engine for others, as this scheduler asked",
            ["pool"],
            registry=registry,
        )
        self.gaps: Final = Counter(
            "pointsman_scheduler_peer_gaps",
            "Gaps in the messages of other schedulers",
            ["scheduler"],
            registry=registry,
        )
        self.malformed: Final = Counter(
            "pointsman_scheduler_malformed_registrations", "Registrations that can't be used", registry=registry
        )
        self.session_turns: Final = Counter(
            "pointsman_scheduler_session_turns",
            "Requests of sessions by what became of the session's engine: new (they continue no known turn), stayed, "
            "or the reason of the change",
            ["pool", "place"],
            registry=registry,
        )
        self.unpublished: Final = Counter(
            "pointsman_scheduler_unpublished", "Messages that the bus didn't take", ["type"], registry=registry
        )
        self.parked: Final = Counter(
            "pointsman_scheduler_parked", "Requests that had to wait", ["pool"], registry=registry
        )
        self.dropped: Final = Counter(
            "pointsman_scheduler_dropped",
            "Requests that ended while they waited, by reason",
            ["pool", "reason"],
            registry=registry,
        )
        self.queued_seconds: Final = Histogram(
            "pointsman_scheduler_queued_seconds",
            "Time that requests waited before they went to an engine",
            ["pool"],
            buckets=_QUEUED_SECONDS,
            registry=registry,
        )
        self.bound: Final = Counter(
            "pointsman_scheduler_bound",
            "Requests that waited for the engine that suits them best, by why they were bound",
            ["pool", "because"],
            registry=registry,
        )
        self.unbound_seconds: Final = Histogram(
            "pointsman_scheduler_unbound_seconds",
            "Time that requests waited for the engine that suits them best",
            ["pool"],
            buckets=_UNBOUND_SECONDS,
            registry=registry,
        )
        self.wake_orders: Final = Counter(
            "pointsman_scheduler_wake_orders",
            "Orders to wake a sleeping engine: ordered (sent, also again), served (engines that then served), or "
            "failed (engines that didn't)",
            ["pool", "outcome"],
            registry=registry,
        )
        self._registry: Final = registry
        self.of: Final[Callable[[str], PoolMetrics]] = cache(partial(PoolMetrics, self))
        """The children of a pool."""
        registry.register(_Pools(pools))

    def watch_queues(self, figures: Callable[[], Iterable[tuple[str, Figures]]]) -> None:
        """Report the waiting requests at each scrape."""
        self._registry.register(_Queues(figures))


class _Pools(Collector):
    def __init__(self, pools: Callable[[], Iterable[PoolScheduler]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        open_requests = GaugeMetricFamily("pointsman_scheduler_open_requests", "Requests on the books", labels=["pool"])
        workers = GaugeMetricFamily("pointsman_scheduler_workers", "Workers by state", labels=["pool", "state"])
        blocks = GaugeMetricFamily("pointsman_scheduler_prefix_blocks", "Prefix blocks known", labels=["pool"])
        size = GaugeMetricFamily("pointsman_scheduler_prefix_bytes", "Memory of the prefix index", labels=["pool"])
        evicted = CounterMetricFamily(
            "pointsman_scheduler_prefix_evicted", "Prefix entries given up, by cause", labels=["pool", "cause"]
        )
        abandoned = CounterMetricFamily(
            "pointsman_scheduler_prefix_abandoned",
            "Requests whose end was not reported in time: the blocks expected in a cache are dropped",
            labels=["pool"],
        )
        unbound = GaugeMetricFamily(
            "pointsman_scheduler_unbound_requests",
            "Requests that wait for the engine that suits them best",
            labels=["pool"],
        )
        below = GaugeMetricFamily(
            "pointsman_scheduler_tier_blocks",
            "Prefix blocks known below the engines' devices, by tier",
            labels=["pool", "tier"],
        )
        for pool in self._pools():
            for tier, count in pool.index.count_below().items():
                below.add_metric([pool.pool, tier], count)
            unbound.add_metric([pool.pool], len(pool.binder))
            open_requests.add_metric([pool.pool], len(pool.books))
            states: dict[str, int] = {}
            for worker in pool.fleet.workers:
                state = "ejected" if worker.standing.ejected else worker.state
                states[state] = states.get(state, 0) + 1
            for state, count in states.items():
                workers.add_metric([pool.pool, state], count)
            memory = pool.index.memory()
            blocks.add_metric([pool.pool], memory.blocks)
            size.add_metric([pool.pool], memory.bytes)
            for cause in ("evicted_capacity", "evicted_memory", "expired"):
                evicted.add_metric([pool.pool, cause.removeprefix("evicted_")], float(getattr(memory, cause)))
            abandoned.add_metric([pool.pool], memory.abandoned)
        yield from (open_requests, unbound, workers, blocks, below, size, evicted, abandoned)


class _Queues(Collector):
    def __init__(self, figures: Callable[[], Iterable[tuple[str, Figures]]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        labels = ["pool", "priority"]
        requests = GaugeMetricFamily("pointsman_scheduler_queue_requests", "Requests that wait", labels=labels)
        size = GaugeMetricFamily("pointsman_scheduler_queue_bytes", "Bodies of those that wait", labels=labels)
        flows = GaugeMetricFamily("pointsman_scheduler_queue_flows", "Flows that wait", labels=labels)
        unserved = GaugeMetricFamily(
            "pointsman_scheduler_unserved_requests",
            "Requests that wait while no engine of the pool serves, at this scheduler; 0 while one does",
            labels=["pool"],
        )
        for pool, figures in self._figures():
            unserved.add_metric([pool], figures.unserved)
            for priority, (count, length, waiting) in figures.by_band.items():
                requests.add_metric([pool, str(priority)], count)
                size.add_metric([pool, str(priority)], length)
                flows.add_metric([pool, str(priority)], waiting)
        yield from (requests, size, flows, unserved)
