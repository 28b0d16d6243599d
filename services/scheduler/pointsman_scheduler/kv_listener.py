"""Applies the agents' KV cache events to the prefix indexes, and requests missed ones."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_contracts.message import MalformedMessage
from pointsman_plugins.scheduling.worker import Worker
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.kv_following import KvFollower
from pointsman_scheduler.domain.pools import Pools

TURN_S: Final = 0.1
ANSWER_TIMEOUT_S: Final = 5.0
"""A snapshot part is some megabytes."""

_log = Log("kv-events")


class KvListener:
    """One follower for each worker that publishes KV events."""

    def __init__(
        self,
        bus: Bus,
        pools: Pools,
        block_tokens: Callable[[str], int],
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`block_tokens(pool)`: tokens in a block of the pool's index."""
        self._bus: Final = bus
        self._pools: Final = pools
        self._block_tokens: Final = block_tokens
        self._clock: Final = clock
        self._followers: dict[tuple[str, str], KvFollower] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._other_size: set[tuple[str, str]] = set()
        """Registered workers whose block size differs from the pool's; logged once."""
        self._gaps = Counter(
            "pointsman_scheduler_kv_gaps", "Times that messages about a worker's KV cache were missing", ["pool"],
            registry=registry,
        )  # fmt: skip
        self._mismatched = Counter(
            "pointsman_scheduler_kv_other_block_size",
            "Messages about KV caches whose blocks are of another size than the pool's",
            ["pool"],
            registry=registry,
        )
        behind = Gauge(
            "pointsman_scheduler_kv_behind", "Workers of whose KV cache something is missing", registry=registry
        )
        behind.set_function(lambda: sum(follower.is_behind for follower in self._followers.values()))

    def heard(self, event: WorkerKvEvents) -> None:
        """Take an agent's message."""
        worker = self._worker(event.pool, event.worker)
        if worker is None or worker.registration.boot_id != event.boot_id:
            return  # its registration will come; the next message, or the next heartbeat at the latest, finds the gap
        key = (event.pool, event.worker)
        if event.block_tokens != self._block_tokens(event.pool):
            self._mismatched.labels(event.pool).inc()
            if key not in self._other_size:
                self._other_size.add(key)
                _log.error(
                    "kv_block_size_differs", pool=event.pool, worker=event.worker, told=event.block_tokens,
                    wanted=self._block_tokens(event.pool),
                )  # fmt: skip
            return
        follower = self._followers.get(key)
        if follower is None:
            follower = self._followers[key] = KvFollower()
        before = follower.gaps
        told = follower.hear(event)
        self._pools.of(event.pool).hear_kv(event.worker, event.boot_id, told, not follower.is_behind, self._clock())
        if follower.gaps > before:
            self._gaps.labels(event.pool).inc()

    async def run(self) -> None:
        """Request missing messages until cancelled."""
        while True:
            await asyncio.sleep(TURN_S)
            now = self._clock()
            self._other_size = {key for key in self._other_size if self._worker(*key) is not None}
            for key, follower in list(self._followers.items()):
                if self._worker(*key) is None:
                    del self._followers[key]
                elif self._bus.connected and (query := follower.question(now)) is not None:
                    task = asyncio.get_running_loop().create_task(self._ask_agent(key, follower, query))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)

    async def _ask_agent(self, key: tuple[str, str], follower: KvFollower, query: WorkerKvQuery) -> None:
        try:
            state = WorkerKvState.decode(await self._bus.ask(query, *key, timeout=ANSWER_TIMEOUT_S))
        except BusError as error:
            _log.warning("kv_state_unanswered", pool=key[0], worker=key[1], reason=str(error))
            return
        except MalformedMessage as error:
            _log.warning("kv_state_malformed", pool=key[0], worker=key[1], problem=error.problem, where=error.where)
            return
        told = follower.receive_answer(state)
        self._pools.of(key[0]).hear_kv(key[1], state.boot_id, told, not follower.is_behind, self._clock())

    def _worker(self, pool: str, name: str) -> Worker | None:
        found = self._pools.get(pool)
        return None if found is None else found.fleet.find(name)
