"""One scheduler among several: publishes its state, asks for its peers' when it joins, and again when messages are
missing."""

import asyncio
import time
from typing import Final

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.scheduling import Reservations, SchedulerState, SchedulerStateQuery
from pointsman_journey.heartbeat import Heartbeat
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.domain.state import part_of, take_prefixes, take_reservations
from pointsman_scheduler.metrics import SchedulerMetrics

ANSWER_S: Final = 5.0
"""Timeout of a peer's answer for one part."""
JOIN_S: Final = 10.0
"""Timeout of joining: serving with less knowledge is better than not serving."""

_log = Log("replica")


class Replica:
    """Peers are found by their heartbeats."""

    def __init__(self, bus: Bus, heartbeat: Heartbeat, pools: Pools, metrics: SchedulerMetrics) -> None:
        self._bus: Final = bus
        self._heartbeat: Final = heartbeat
        self._pools: Final = pools
        self._metrics: Final = metrics
        self._instance: Final = bus.process.instance
        self._heard: dict[tuple[str, str], int] = {}
        self._catching_up: set[asyncio.Task[None]] = set()

    def answer_query(self, query: SchedulerStateQuery) -> SchedulerState:
        """Send a peer a part of this scheduler's state."""
        pool = self._pools.get(query.pool)
        return SchedulerState() if pool is None else part_of(pool, query, time.monotonic())

    def follows(self, message: Reservations) -> bool:
        """Note a peer's message, and ask again when earlier ones got lost. False for one of this scheduler's own."""
        scheduler, sequence = message.scheduler, message.sequence
        if scheduler == self._instance:
            return False
        key = (scheduler, message.pool)
        before = self._heard.get(key, sequence)
        self._heard[key] = sequence
        if sequence > before + 1:
            self._metrics.gaps.labels(scheduler).inc()
            _log.warning("peer_missed", scheduler=scheduler, pool=message.pool, since=before)
            task = asyncio.get_running_loop().create_task(self._catch_up(scheduler, message.pool))
            self._catching_up.add(task)
            task.add_done_callback(self._catching_up.discard)
        return True

    async def take_over_state(self) -> None:
        """Take over the state of a peer, if one is known."""
        peers = self._peers()
        began = time.monotonic()
        for peer in peers:
            try:
                async with asyncio.timeout(JOIN_S):
                    requests, blocks = await self._take_all(peer)
            except (BusError, MalformedMessage, TimeoutError) as error:
                _log.warning("peer_not_asked", peer=peer, reason=type(error).__name__)
                continue
            took_ms = round((time.monotonic() - began) * 1000)
            _log.info("joined", peer=peer, requests=requests, prefix_blocks=blocks, took_ms=took_ms)
            return
        if peers:
            _log.warning("joined_without_state", peers=len(peers))

    async def close(self) -> None:
        """Cancel pending tasks."""
        await end_all(self._catching_up)

    def _peers(self) -> list[str]:
        table, now = self._heartbeat.table, asyncio.get_running_loop().time()
        me = self._bus.process
        return [
            peer
            for peer in table.list_instances(me.service, now)
            if peer != me.instance and table.is_addressable(me.service, peer, now)
        ]

    async def _take_all(self, peer: str) -> tuple[int, int]:
        requests = blocks = 0
        for pool in self._pools:
            requests += await self._take_reservations(peer, pool, own=False)
            for worker in [worker.name for worker in pool.fleet]:
                blocks += await self._take_prefixes(peer, pool, worker)
        return requests, blocks

    async def _take_reservations(self, peer: str, pool: PoolScheduler, own: bool) -> int:
        taken, after = 0, ""
        while True:
            state = await self._ask_peer(peer, SchedulerStateQuery(pool=pool.pool, own=own, after=after))
            taken += take_reservations(pool, state, time.monotonic())
            if not state.more or not state.reservations:
                return taken
            after = state.reservations[-1].change.request_id

    async def _take_prefixes(self, peer: str, pool: PoolScheduler, worker: str) -> int:
        taken = 0
        while True:
            state = await self._ask_peer(peer, SchedulerStateQuery(pool=pool.pool, worker=worker, offset=taken))
            count = take_prefixes(pool, worker, state, time.monotonic())
            taken += count
            if not state.more or not count:
                return taken

    async def _catch_up(self, scheduler: str, pool: str) -> None:
        try:
            await self._take_reservations(scheduler, self._pools.of(pool), own=True)
        except (BusError, MalformedMessage) as error:
            # Its later reservations come with its next messages; the missed ends stay unknown.
            _log.warning("peer_not_asked", peer=scheduler, reason=type(error).__name__)

    async def _ask_peer(self, peer: str, query: SchedulerStateQuery) -> SchedulerState:
        return SchedulerState.decode(await self._bus.ask(query, peer, timeout=ANSWER_S))
