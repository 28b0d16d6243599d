"""Publishes the contents of an engine's KV cache."""

import time
from collections.abc import Callable
from typing import Final

from pointsman_contracts.kv import WorkerKvQuery, WorkerKvState
from pointsman_contracts.timing import TIMES
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.kv_blocks import EngineBlocks
from pointsman_worker_agent.domain.kv_feed import KvFeed
from pointsman_worker_agent.domain.kv_wire import Decoder, MalformedBatch

FLUSH_S: Final = 0.02
"""Seconds of changes that are published together."""

_log = Log("kv-events")


class KvSpeaker:
    """Publishes the engine's batches on the bus.

    `boot_id` and `model` name the engine's life and its first model, empty while unknown; `capacity` is the size of one
    rank's cache in its own blocks, None while unknown.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        pool: str,
        worker: str,
        block_tokens: int,
        boot_id: Callable[[], str],
        model: Callable[[], str],
        capacity: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks: Final = EngineBlocks(block_tokens)
        self.malformed = 0
        """Batches that couldn't be read."""
        self.sent = 0
        """Messages that left."""
        self.unsent = 0
        """Messages that were due while the bus was gone; schedulers see the gap and ask."""
        self._bus: Final = bus
        self._route: Final = (pool, worker)
        self._feed: Final = KvFeed(
            pool=pool, worker=worker, agent=bus.process.instance, block_tokens=block_tokens, held=self.blocks.held
        )
        self._boot_id: Final = boot_id
        self._model: Final = model
        self._capacity: Final = capacity
        self._clock: Final = clock
        self._decoders: dict[int, Decoder] = {}
        self._before_model: list[tuple[int, bytes]] = []
        self._told_at = 0.0

    def heard(self, rank: int, payload: bytes) -> None:
        """A batch of one rank."""
        model = self._model()
        if not model:  # the salt of its blocks isn't known yet
            self._before_model.append((rank, payload))
            return
        self._take(rank, payload, model)

    def lost(self, rank: int) -> None:
        """Batches of one rank are missing for good."""
        self.blocks.doubt(rank)

    def reset(self, rank: int) -> None:
        """Forget what one rank published so far."""
        self._before_model = [(other, payload) for other, payload in self._before_model if other != rank]
        self._feed.add(self.blocks.clear(rank))

    def flush(self) -> None:
        """Publish the changes, or a heartbeat after `HEARTBEAT_S` without any. To be called every `FLUSH_S`."""
        boot_id, model = self._boot_id(), self._model()
        if not boot_id or not model:
            return
        waiting, self._before_model = self._before_model, []
        for rank, payload in waiting:
            self._take(rank, payload, model)
        self._feed.begin(boot_id)
        now = self._clock()
        messages = self._feed.take(time.time_ns() // 1_000_000)
        if not messages and now - self._told_at >= TIMES.report_s:
            messages = [self._feed.heartbeat(time.time_ns() // 1_000_000)]
        for message in messages:
            self._told_at = now
            try:
                self._bus.publish(message, *self._route)
                self.sent += 1
            except BusError:
                self.unsent += 1

    def answer(self, query: WorkerKvQuery) -> WorkerKvState:
        """Answer a scheduler that missed changes."""
        return self._feed.answer(query, self._clock())

    def _take(self, rank: int, payload: bytes, model: str) -> None:
        decoder = self._decoders.setdefault(rank, Decoder())
        try:
            events = decoder.decode(payload)
        except MalformedBatch as error:
            self.malformed += 1
            if self.malformed == 1:
                _log.warning("kv_batch_malformed", rank=rank, size=len(payload), problem=str(error))
            return
        for event in events:
            self._feed.add(self.blocks.apply(rank, event, model, self._capacity()))
