"""Publishes what the collector found."""

import time
from collections import Counter as Count

from prometheus_client import CollectorRegistry

from pointsman_contracts.draining import DrainOrder
from pointsman_contracts.message import Message
from pointsman_contracts.pool import EnginePrice, PoolDiscovery, WorkerView
from pointsman_contracts.verdicts import WorkerJudged
from pointsman_contracts.worker import WorkerDraining, WorkerJoined, WorkerLeft, WorkerLoad, WorkerSilent
from pointsman_metrics_collector.domain.models import ModelWindow
from pointsman_metrics_collector.domain.snapshot import snapshot
from pointsman_metrics_collector.domain.verdicts import JudgedWorkers
from pointsman_metrics_collector.domain.workers import Change, Joined, Left, Silent
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, MessageTooLarge, PayloadTooLarge
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log

_log = Log("workers")


class MessageNumbers:
    """Numbers the messages of this instance by type and route."""

    def __init__(self, bus: Bus, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._unpublished = Counter(
            "pointsman_collector_unpublished", "Messages that the bus didn't take", ["type"], registry=registry
        )
        self._too_large: set[str] = set()
        """Types that had a message too large to be sent."""
        self._source = bus.process.instance
        self._sequences: Count[tuple[str, str]] = Count()

    def publish_pool(
        self,
        pool: str,
        workers: tuple[WorkerView, ...],
        unreached: dict[str, str],
        discovery: PoolDiscovery | None = None,
        price: EnginePrice | None = None,
    ) -> None:
        """Publish a pool's snapshot."""
        message = snapshot(
            pool,
            workers,
            source=self._source,
            sequence=self._next("snapshot", pool),
            at_ms=_unix_ms(),
            unreached=unreached,
            discovery=discovery,
            price=price,
        )
        self._publish(message, pool)

    def publish_model(self, model: str, window: ModelWindow, now: float) -> None:
        """Publish a model's statistics."""
        sequence = self._next("statistics", model)
        self._publish(
            window.build_statistics(model, now, source=self._source, sequence=sequence, at_ms=_unix_ms()), model
        )

    def publish_worker_change(self, change: Change) -> None:
        """Publish and log that a worker joined, fell silent, or left."""
        registration = change.registration
        pool, worker, boot_id = registration.pool, registration.worker, registration.boot_id
        sequence, at_ms = self._next(type(change).__name__, pool), _unix_ms()
        event: Message
        match change:
            case Joined():
                _log.info("worker_joined", pool=pool, worker=worker, why=change.why, url=registration.url)
                event = WorkerJoined(
                    source=self._source,
                    sequence=sequence,
                    at_ms=at_ms,
                    pool=pool,
                    worker=worker,
                    url=registration.url,
                    engine=registration.engine,
                    boot_id=boot_id,
                    models=registration.models,
                    why=change.why,
                )
            case Silent():
                silent_ms = round(change.silent_s * 1000)
                _log.warning("worker_silent", pool=pool, worker=worker, silent_ms=silent_ms)
                event = WorkerSilent(
                    source=self._source,
                    sequence=sequence,
                    at_ms=at_ms,
                    pool=pool,
                    worker=worker,
                    boot_id=boot_id,
                    silent_ms=silent_ms,
                )
            case Left():
                _log.info("worker_left", pool=pool, worker=worker, state=change.state)
                event = WorkerLeft(
                    source=self._source,
                    sequence=sequence,
                    at_ms=at_ms,
                    pool=pool,
                    worker=worker,
                    boot_id=boot_id,
                    state=change.state,
                )
        self._publish(event, pool)

    def publish_verdict(self, judged: JudgedWorkers) -> None:
        """Publish and log a changed verdict."""
        pool, verdict = judged
        told = _log.warning if verdict.verdict else _log.info
        told(
            "worker_judged", pool=pool, worker=verdict.worker, verdict=verdict.verdict or "well", reason=verdict.reason
        )
        event = WorkerJudged(
            source=self._source,
            sequence=self._next("WorkerJudged", pool),
            at_ms=_unix_ms(),
            pool=pool,
            worker=verdict.worker,
            boot_id=verdict.boot_id,
            verdict=verdict.verdict,
            reason=verdict.reason,
        )
        self._publish(event, pool)

    def publish_draining(self, load: WorkerLoad) -> None:
        """Publish and log that a worker drains, or takes requests again."""
        notice = load.draining
        _log.info(
            "worker_draining",
            pool=load.pool,
            worker=load.worker,
            draining=notice is not None,
            left_ms=None if notice is None else notice.left_ms,
            why="" if notice is None else notice.why,
        )
        event = WorkerDraining(
            source=self._source,
            sequence=self._next("WorkerDraining", load.pool),
            at_ms=_unix_ms(),
            pool=load.pool,
            worker=load.worker,
            boot_id=load.boot_id,
            draining=notice,
        )
        self._publish(event, load.pool)

    def publish_drain_order(self, pool: str, worker: str, order: DrainOrder) -> None:
        """Tell an agent to report its engine as draining, or not any more."""
        self._publish(order, pool, worker)

    def _publish(self, message: Message, *route: str) -> None:
        try:
            self._bus.publish(message, *route)
        except BusError as error:
            type_id = message.address.type_id
            self._unpublished.labels(type(message).__name__).inc()
            # The runtime reports a lost bus, and holds events. Snapshots and statistics are published again later.
            if isinstance(error, MessageTooLarge | PayloadTooLarge) and type_id not in self._too_large:
                self._too_large.add(type_id)
                _log.error("message_too_large", type=type_id, reason=str(error))

    def _next(self, what: str, name: str) -> int:
        self._sequences[what, name] += 1
        return self._sequences[what, name]


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
