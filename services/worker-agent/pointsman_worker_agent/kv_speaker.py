"""Publishes the contents of an engine's KV cache."""

import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from pointsman_contracts.kv import STORE, STORE_NAME, WorkerKvQuery, WorkerKvState
from pointsman_contracts.timing import TIMES
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.kv_blocks import EngineBlocks
from pointsman_worker_agent.domain.kv_feed import KvFeed
from pointsman_worker_agent.domain.kv_wire import Cleared, Decoder, MalformedBatch

FLUSH_S: Final = 0.02
"""Seconds of changes that are published together at least."""
CHANGES_EVERY_S: Final = 0.1
"""Seconds between two messages while changes come all the time: a scheduler takes some 30 us for a message, and 10 for
64 blocks in it. Schedulers predict the blocks of answered requests for 2 s."""
MOST_WAIT: Final = 512
"""Changed blocks that aren't kept waiting for the beat."""

MOST_WAITING: Final = 4096
"""Batches that wait for the name of the engine's model."""

_log = Log("kv-events")


class KvSpeaker:
    """Publishes the engine's batches on the bus.

    `boot_id` and `model` name the engine's life and its first model, empty while unknown; `capacity` is the size of one
    rank's cache in its own blocks, and `engine_block_tokens` the tokens in one of these, None while unknown.
    `on_new_life` is called when another life begins, `on_unusable` with a fault of the block sizes, empty when it is
    mended.
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
        engine_block_tokens: Callable[[], int | None] = lambda: None,
        on_new_life: Callable[[], None] = lambda: None,
        on_unusable: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        store: str = "",
        store_media: Collection[str] = (),
    ) -> None:
        """`store` and `store_media` as in `Decoder`."""
        self.blocks: Final = EngineBlocks(block_tokens)
        self.malformed = 0
        """Batches that couldn't be read."""
        self.unknown_media = 0
        """Events of a medium that stands for no tier; they are passed over."""
        self.sent = 0
        """Messages that left."""
        self.unsent = 0
        """Messages that were due while the bus was gone; schedulers see the gap and ask."""
        self._bus: Final = bus
        self._route: Final = (pool, worker)
        self._feed: Final = KvFeed(
            pool=pool,
            worker=worker,
            agent=bus.process.instance,
            block_tokens=block_tokens,
            held=self.blocks.held,
            lower=self.blocks.list_lower,
            store=STORE + STORE_NAME + store if store else "",
        )
        self._make_decoder: Final = partial(Decoder, store, store_media)
        self._boot_id: Final = boot_id
        self._model: Final = model
        self._capacity: Final = capacity
        self._engine_block_tokens: Final = engine_block_tokens
        self._on_new_life: Final = on_new_life
        self._on_unusable: Final = on_unusable
        self._block_tokens: Final = block_tokens
        self._clock: Final = clock
        self._decoders: dict[int, Decoder] = {}
        self._life = ""
        self._broken: Final[set[int]] = set()
        """Ranks whose publisher was lost in this life."""
        self._unusable = ""
        self._before_model: deque[tuple[int, bytes]] = deque()
        self._told_at = 0.0

    def receive_batch(self, rank: int, payload: bytes) -> None:
        model = self._model()
        if not model:  # the salt of its blocks isn't known yet
            self._before_model.append((rank, payload))
            if len(self._before_model) > MOST_WAITING:
                lost, _ = self._before_model.popleft()
                self.blocks.note_lost_events(lost)
            return
        self._take(rank, payload, model)

    def note_lost_batches(self, rank: int) -> None:
        """Batches of one rank are missing for good."""
        self.blocks.note_lost_events(rank)

    def broke(self, rank: int) -> None:
        """The publisher of one rank is gone. Either the network failed or its engine did: the next life tells."""
        self._broken.add(rank)
        self.blocks.note_lost_events(rank)
        self.blocks.doubt_lower(rank)

    def forget_rank(self, rank: int) -> None:
        """Forget what one rank published so far."""
        self._before_model = deque((other, payload) for other, payload in self._before_model if other != rank)
        for delta in self.blocks.clear(rank):
            self._feed.add_changes(delta)

    def publish_changes(self) -> None:
        """Publish the changes, or a heartbeat after `HEARTBEAT_S` without any. To be called every `FLUSH_S`."""
        boot_id, model = self._boot_id(), self._model()
        if boot_id and boot_id != self._life:
            self._begin(boot_id)
        if not boot_id or not model:
            return
        waiting, self._before_model = self._before_model, deque()
        for rank, payload in waiting:
            self._take(rank, payload, model)
        self._feed.begin_life(boot_id)
        self._check_sizes()
        now = self._clock()
        if self._feed.waiting_blocks < MOST_WAIT and now - self._told_at < CHANGES_EVERY_S:
            return
        messages = self._feed.take_due_messages(time.time_ns() // 1_000_000)
        if not messages and now - self._told_at >= TIMES.report_s:
            messages = [self._feed.make_heartbeat(time.time_ns() // 1_000_000)]
        for message in messages:
            self._told_at = now
            try:
                self._bus.publish(message, *self._route)
                self.sent += 1
            except BusError:
                self.unsent += 1

    def _begin(self, boot_id: str) -> None:
        """A life begins, with an empty cache: nothing of the former one is believed. Blocks that were reported since
        the publisher was lost are the new one's."""
        former, self._life = self._life, boot_id
        if not former:
            return
        for rank in self.blocks.ranks:
            gone = self.blocks.drop_doubted(rank) if rank in self._broken else self.blocks.clear(rank)
            for delta in gone:
                self._feed.add_changes(delta)
        self._broken.clear()
        self._on_new_life()

    def _check_sizes(self) -> None:
        size = self.blocks.engine_block_tokens or self._engine_block_tokens()
        unusable = ""
        if size and self._block_tokens % size:
            unusable = f"the engine's have {size} tokens, and its agent's {self._block_tokens}, which is no multiple"
        if unusable != self._unusable:
            self._unusable = unusable
            self._on_unusable(unusable)
            if unusable:
                _log.warning("kv_block_size_unusable", engine_tokens=size, block_tokens=self._block_tokens)

    def answer_query(self, query: WorkerKvQuery) -> WorkerKvState:
        """Answer a scheduler that missed changes."""
        return self._feed.answer_query(query, self._clock())

    def _take(self, rank: int, payload: bytes, model: str) -> None:
        decoder = self._decoders.get(rank)
        if decoder is None:
            decoder = self._decoders[rank] = self._make_decoder()
        unknown_media = decoder.unknown_media
        try:
            events = decoder.decode(payload)
        except MalformedBatch as error:
            self.malformed += 1
            if self.malformed == 1:
                _log.warning("kv_batch_malformed", rank=rank, size=len(payload), problem=str(error))
            return
        if decoder.unknown_media > unknown_media:
            if not self.unknown_media:
                _log.warning("kv_medium_unknown", rank=rank)
            self.unknown_media += decoder.unknown_media - unknown_media
        for event in events:
            self._feed.add_changes(self.blocks.apply_event(rank, event, model, self._capacity()))
            if isinstance(event, Cleared):
                for delta in self.blocks.clear_lower(rank):
                    self._feed.add_changes(delta)
