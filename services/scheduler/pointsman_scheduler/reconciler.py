"""Corrects the books when messages got lost: asks edges about doubtful requests, and drops those of dead edges. In
each turn it also has pools look for requests that wait too long."""

import asyncio
import time
from collections.abc import Collection
from typing import Final

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.services import EDGES
from pointsman_journey.heartbeat import Heartbeat
from pointsman_plugins.scheduling.worker import Hold
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoListener
from pointsman_runtime.telling.lag import LAG
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.outlier_actions import RequestMover, VerdictPublisher

TURN_S: Final = 0.5
EDGE_GONE_AFTER_S: Final = 10.0
"""An edge without a heartbeat for this long is dead, and its connections to engines with it."""
SWEEPS: Final = 128
"""Sweeps of a pool in one turn; other work goes on between them."""
ASKED_AT_ONCE: Final = 500
"""Request ids in one question."""

_log = Log("reconciler")


class Reconciler:
    """One turn each `TURN_S`."""

    def __init__(
        self,
        bus: Bus,
        heartbeat: Heartbeat,
        pools: Pools,
        gate: Gate,
        announcer: DecisionPublisher,
        metrics: SchedulerMetrics,
        verdicts: VerdictPublisher,
        mover: RequestMover,
    ) -> None:
        self._bus: Final = bus
        self._verdicts: Final = verdicts
        self._mover: Final = mover
        self._heartbeat: Final = heartbeat
        self._pools: Final = pools
        self._gate: Final = gate
        self._announcer: Final = announcer
        self._metrics: Final = metrics
        self._heard: dict[str, float] = {}
        self._listening_since = time.monotonic()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(TURN_S)
            now = time.monotonic()
            for pool in self._pools:
                for _ in range(SWEEPS):
                    more = pool.sweep(now, LAG.slack_s(now))
                    if pool.overdue and self._bus.connected:
                        self._mover.move_requests(pool.pool, pool.overdue, self._looks_after)
                        self._gate.changed(pool)
                    if not more:
                        break
                    await asyncio.sleep(0)
            if not self._bus.connected:
                self._listening_since = now
                continue
            self._write_off_dead_edges(now)
            for pool in self._pools:
                self._verdicts.publish_verdicts(pool, now)
                for edge, request_ids in pool.books.doubtful(now, self._looks_after).items():
                    await self._ask_edge(pool, edge, tuple(request_ids))

    def _looks_after(self, scheduler: str) -> bool:
        """Whether this scheduler looks after the reservations of `scheduler`: its own, and those of dead ones."""
        table, now = self._heartbeat.table, asyncio.get_running_loop().time()
        return scheduler == self._announcer.instance or not table.is_alive("scheduler", scheduler, now)

    def _write_off_dead_edges(self, now: float) -> None:
        table, loop_time = self._heartbeat.table, asyncio.get_running_loop().time()
        for service in EDGES:
            for edge, alive in table.list_instances(service, loop_time).items():
                if alive:
                    self._heard[edge] = now
        for edge, heard in tuple(self._heard.items()):
            if now - max(heard, self._listening_since) > EDGE_GONE_AFTER_S:
                del self._heard[edge]
                self._gate.edge_gone(edge)
                for pool in self._pools:
                    self._write_off(pool, edge)

    async def _ask_edge(self, pool: PoolScheduler, edge: str, request_ids: tuple[str, ...]) -> None:
        for start in range(0, len(request_ids), ASKED_AT_ONCE):
            asked = request_ids[start : start + ASKED_AT_ONCE]
            try:
                answer = OpenRequests.decode(await self._bus.ask(OpenRequestsQuery(request_ids=asked), edge))
            except NoListener:
                # An edge that this scheduler has never known, and that is dead.
                self._write_off(pool, edge)
                return
            except (BusError, MalformedMessage) as error:
                # They are asked about again; a dead edge's are dropped when its silence is certain.
                _log.warning("edge_not_asked", edge=edge, requests=len(asked), reason=type(error).__name__)
                return
            self._release(pool, edge, set(asked).difference(answer.request_ids))

    def _write_off(self, pool: PoolScheduler, edge: str) -> None:
        count = pool.books.edge_gone(edge, time.monotonic())
        if count:
            self._metrics.of(pool.pool).released(count)
            _log.warning("edge_gone", edge=edge, pool=pool.pool, requests=count)

    def _release(self, pool: PoolScheduler, edge: str, request_ids: Collection[str]) -> None:
        now = time.monotonic()
        lost: list[Hold] = []
        for request_id in request_ids:
            lost += pool.books.reservations_of((edge, request_id))
            pool.books.completed((edge, request_id), now, ok=False)
        if lost:
            self._metrics.of(pool.pool).released(len({hold.change.request_id for hold in lost}))
            self._announcer.record_change(pool.pool, "release", lost)
