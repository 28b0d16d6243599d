"""Acts on what a pool finds about its workers: publishes verdicts, and asks edges to move requests off a worker that
doesn't answer."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.verdicts import MovedRequests, MoveRequests, WorkerVerdict, WorkerVerdicts
from pointsman_plugins.scheduling.worker import Hold, Worker
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.outlier_detection import Overdue, WorkerJudgement
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.rank_heeding import RankHeeding
from pointsman_scheduler.metrics import SchedulerMetrics

ASKED_AT_ONCE: Final = 500
"""Request ids in one question."""

_log = Log("outliers")


class VerdictPublisher:
    """Publishes the verdicts on each pool's workers. Call it in each turn of the reconciler."""

    def __init__(self, bus: Bus) -> None:
        self._bus: Final = bus
        self._unwell: Final[set[str]] = set()
        """Pools that had verdicts in the last turn."""
        self._heeding: Final[dict[str, RankHeeding]] = {}
        """By pool."""
        self._sequence = 0

    def publish_verdicts(self, pool: PoolScheduler, now: float) -> None:
        """Publish the verdicts, if there are any, or were."""
        found = pool.outliers.verdicts(now)
        found += self._find_unheeded(pool, now, {each.worker for each in found})
        if not found and pool.pool not in self._unwell:
            return
        self._sequence += 1
        message = WorkerVerdicts(
            pool=pool.pool,
            source=self._bus.process.instance,
            sequence=self._sequence,
            at_ms=time.time_ns() // 1_000_000,
            verdicts=tuple(
                WorkerVerdict(worker=worker.name, boot_id=worker.registration.boot_id, verdict=verdict, reason=reason)
                for worker, verdict, reason in found
            ),
        )
        try:
            self._bus.publish(message, pool.pool)
        except BusError as error:
            _log.debug("unpublished", reason=str(error))  # the next ones come in a second
            return
        if found:
            self._unwell.add(pool.pool)
        else:
            self._unwell.discard(pool.pool)

    def _find_unheeded(self, pool: PoolScheduler, now: float, unwell: Collection[Worker]) -> list[WorkerJudgement]:
        """The workers whose engine ignores the rank, but for those that have another verdict."""
        heeding = self._heeding.setdefault(pool.pool, RankHeeding())
        if not heeding.compare(pool, now):
            return []
        judged = (heeding.judge(worker) for worker in pool.fleet.present if worker not in unwell)
        return [each for each in judged if each is not None]


class RequestMover:
    """Asks the edges; their answers come later, as `AttemptFailed` of each request that moved."""

    def __init__(self, bus: Bus, metrics: SchedulerMetrics) -> None:
        self._bus: Final = bus
        self._metrics: Final = metrics
        self._asking: Final[set[asyncio.Task[None]]] = set()

    def move_requests(self, pool: str, overdue: Iterable[Overdue], mine: Callable[[str], bool]) -> None:
        """Ask for the requests of schedulers that are `mine` to look after."""
        for worker, holds, avoid in overdue:
            reason = worker.standing.reason or "it doesn't answer in time"
            self._ask_edges(pool, worker, [hold for hold in holds if mine(hold.scheduler)], avoid, reason)

    def stop_requests(self, pool: str, stopped: Iterable[Hold]) -> None:
        """Ask for background requests of this scheduler: other requests came to their engines."""
        by_worker: dict[str, list[Hold]] = {}
        for hold in stopped:
            by_worker.setdefault(hold.worker.name, []).append(hold)
        for holds in by_worker.values():
            self._ask_edges(pool, holds[0].worker, holds, (), "other requests came to its engine", gives_way=True)

    def _ask_edges(
        self,
        pool: str,
        worker: Worker,
        holds: Iterable[Hold],
        avoid: tuple[str, ...],
        reason: str,
        *,
        gives_way: bool = False,
    ) -> None:
        by_edge: dict[str, list[str]] = {}
        for hold in holds:
            by_edge.setdefault(hold.change.edge, []).append(hold.change.request_id)
        for edge, ids in by_edge.items():
            for start in range(0, len(ids), ASKED_AT_ONCE):
                query = MoveRequests(
                    pool=pool,
                    worker=worker.name,
                    boot_id=worker.registration.boot_id,
                    request_ids=tuple(ids[start : start + ASKED_AT_ONCE]),
                    avoid=avoid,
                    reason=reason,
                    gives_way=gives_way,
                )
                task = asyncio.get_running_loop().create_task(self._ask_edge(query, edge))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask_edge(self, query: MoveRequests, edge: str) -> None:
        try:
            moved = MovedRequests.decode(await self._bus.ask(query, edge))
        except (BusError, MalformedMessage) as error:
            # The next sweep names them again.
            _log.warning("edge_not_asked", edge=edge, requests=len(query.request_ids), reason=type(error).__name__)
            return
        if query.gives_way:
            self._metrics.of(query.pool).count_stops(len(moved.request_ids))
        elif moved.request_ids:
            self._metrics.of(query.pool).moved(len(moved.request_ids))
            _log.warning(
                "requests_moved",
                edge=edge,
                pool=query.pool,
                worker=query.worker,
                requests=len(moved.request_ids),
                reason=query.reason,
            )

    async def close(self) -> None:
        """Cancel pending questions."""
        await end_all(self._asking)
