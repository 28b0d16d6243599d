"""Keeps the shards of the limits' counts that are this preprocessor's, and knows who keeps the others.

Who keeps a shard follows from who lives. What it holds follows from its last keeper: that one hands it over while it
lives, and leaves its last snapshot in the bucket when it doesn't.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from pointsman_contracts.limits import SHARDS, LimitAsks, LimitHandOver, LimitShard
from pointsman_preprocessor.adapters.limit_metrics import LimitMetrics
from pointsman_preprocessor.adapters.shard_snapshots import ShardSnapshots, Store
from pointsman_preprocessor.domain.limits.book import Book
from pointsman_preprocessor.domain.limits.sharding import keeper_of
from pointsman_runtime.bus import Bus
from pointsman_runtime.errors import BusError, NobodyListens, NoReply
from pointsman_runtime.logs import Log
from pointsman_runtime.presence import BEAT_S

HAND_OVER_S: Final = 0.5
"""How long a keeper may take to hand over a shard."""
SIGN_S: Final = 0.15
"""How long an instance that somebody else takes for dead may take to say a word."""
REMEMBERED_S: Final = 10.0
"""How long a shard that was handed over can be asked for again, should the answer get lost."""
UNKNOWN_S: Final = 1.0
"""Between the last snapshot of a keeper that died and its death, at most."""
CLOCKS_S: Final = 0.5
"""Between two clocks that go right; counts of one that doesn't are moved to this one's time."""
MISSED_S: Final = 2 * BEAT_S
"""A beat is late, and so is an answer: more than either says alone."""
DOUBTED_S: Final = 0.8
"""How long an instance that doesn't answer is taken for dead; then its heartbeats are missing, or it is back."""

_log = Log("limits")


class ShardKeeper:
    """One of a process. `clock` gives unix seconds that never go back."""

    def __init__(self, bus: Bus, store: Store, metrics: LimitMetrics, clock: Callable[[], float]) -> None:
        self.me: Final = bus.process.instance
        self.on_taken: Callable[[Book, float], None] = _nothing
        """Called with a shard that is now kept here and the time of what is known of it."""
        self._bus: Final = bus
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._books: Final[dict[int, Book]] = {}
        self._snapshots: Final = ShardSnapshots(store, self._books, self.me, metrics, clock)
        self._handed: Final[dict[int, tuple[str, bytes, float]]] = {}
        self._fetching: Final[dict[int, asyncio.Task[None]]] = {}
        self._doubted: Final[dict[str, float]] = {}
        self._looked_after: Final[dict[str, asyncio.Task[None]]] = {}
        self.members: tuple[str, ...] = (self.me,)
        """Preprocessors that keep shards."""
        self._keepers: list[str] = [self.me] * SHARDS
        metrics.watch(lambda: len(self._books), lambda: sum(book.open_charges for book in self._books.values()))

    def begin(self) -> None:
        """Limits are configured. Needs a running loop; the second call does nothing."""
        self._snapshots.begin()

    async def ready(self) -> None:
        """Wait until what was counted before is known, if it is needed."""
        await self._snapshots.ready()

    def tick(self) -> None:
        """A few times a second."""
        if self._snapshots.began:
            self._look_around()
            self._snapshots.tick()

    async def close(self) -> None:
        """Give everything up, so that others go on where this instance stops."""
        for task in (*self._fetching.values(), *self._looked_after.values()):
            task.cancel()
        await self._snapshots.give_up()
        self._books.clear()

    def keeper(self, shard: int) -> str:
        """Who should keep it."""
        return self._keepers[shard]

    def book(self, shard: int) -> Book | str:
        """What is counted in a shard that should be kept here, or else who still keeps it."""
        book = self._books.get(shard)
        if book is not None:
            return book
        holder = self._holder(shard)
        if holder and holder != self.me and self._lives(holder):
            self._fetch(shard, holder)
            return holder
        return self._take(shard, self._snapshots.of(shard))

    def held(self, shard: int) -> Book | None:
        """What is counted in a shard that is kept here, rightly or still."""
        return self._books.get(shard)

    def books(self) -> list[Book]:
        """All that are kept here."""
        return list(self._books.values())

    def doubt(self, instance: str) -> None:
        """Nobody answers there, earlier than its heartbeats are missed."""
        self._doubted[instance] = asyncio.get_running_loop().time() + DOUBTED_S
        self._look_around()

    def suspect(self, instance: str) -> None:
        """It doesn't answer in time. One that is busy beats all the same: its shards aren't taken from it."""
        now = asyncio.get_running_loop().time()
        if self._bus.heartbeat.table.silence(self._bus.process.service, instance, now) > MISSED_S:
            self.doubt(instance)

    def doubts(self, instance: str) -> bool:
        """Whether nobody listened there a moment ago."""
        return instance in self._doubted

    def look_after(self, instance: str) -> None:
        """Somebody takes an instance for dead that isn't known to be: ask it for a sign."""
        if instance != self.me and instance not in self._doubted and instance not in self._looked_after:
            task = self._looked_after[instance] = asyncio.get_running_loop().create_task(self._look_after(instance))
            task.add_done_callback(lambda _: self._looked_after.pop(instance, None))

    def hand_over(self, query: LimitHandOver) -> bytes:
        """Give a shard to whom it belongs now."""
        book = self._books.pop(query.shard, None)
        now = self._clock()
        if book is not None:
            state = book.snapshot(query.to, now).encode()
            self._handed[query.shard] = (query.to, state, now)
            self._metrics.moved("handed_over")
            return state
        handed = self._handed.get(query.shard)
        if handed is not None and handed[0] == query.to and now - handed[2] < REMEMBERED_S:
            return handed[1]
        return LimitShard(shard=query.shard, keeper=self._holder(query.shard), at_ms=round(now * 1000)).encode()

    def _look_around(self) -> None:
        table, now = self._bus.heartbeat.table, asyncio.get_running_loop().time()
        service = self._bus.process.service
        for instance in [each for each, until in self._doubted.items() if until < now]:
            del self._doubted[instance]
        found = {
            each
            for each in table.instances(service, now)
            if each not in self._doubted and table.addressable(service, each, now)
        }
        if self._bus.heartbeat.ready:
            found.add(self.me)
        members = tuple(sorted(found)) or (self.me,)
        if members == self.members:
            return
        self.members = members
        self._keepers = [keeper_of(shard, members) or self.me for shard in range(SHARDS)]
        for shard in range(SHARDS):
            # What ends meanwhile has to be counted, whether or not somebody asks.
            if self._keepers[shard] == self.me and self._snapshots.knows(shard):
                self.book(shard)

    def _lives(self, instance: str) -> bool:
        now = asyncio.get_running_loop().time()
        service = self._bus.process.service
        return instance not in self._doubted and self._bus.heartbeat.table.alive(service, instance, now)

    def _holder(self, shard: int) -> str:
        handed = self._handed.get(shard)
        if handed is not None and self._clock() - handed[2] < REMEMBERED_S:
            return handed[0]
        state = self._snapshots.of(shard)
        return "" if state is None else state.keeper

    def _take(self, shard: int, state: LimitShard | None, *, handed_over: bool = False) -> Book:
        book = self._books[shard] = Book(shard)
        self._handed.pop(shard, None)
        if state is not None:
            now, at = self._clock(), state.at_ms / 1000
            # What is handed over is as old as its message. No snapshot is of a time to come.
            ahead_s = at - now if at > now or handed_over else 0.0
            if abs(ahead_s) < CLOCKS_S:
                ahead_s = 0.0
            unknown_s = 0.0 if handed_over or not state.keeper else min(max(0.0, now - at), UNKNOWN_S)
            book.take_over(state, unknown_s, ahead_s)
            self.on_taken(book, at - ahead_s)
            self._metrics.moved("taken_over")
        book.changed = True
        self._snapshots.claim(shard)
        return book

    def _fetch(self, shard: int, holder: str) -> None:
        if shard not in self._fetching:
            task = self._fetching[shard] = asyncio.get_running_loop().create_task(self._take_from(shard, holder))
            task.add_done_callback(lambda _: self._fetching.pop(shard, None))

    async def _take_from(self, shard: int, holder: str) -> None:
        try:
            query = LimitHandOver(shard=shard, to=self.me)
            state = LimitShard.decode(await self._bus.ask(query, holder, timeout=HAND_OVER_S))
        except NobodyListens:
            self.doubt(holder)
            return
        except (BusError, ValidationError) as error:
            _log.warning("limit_shard_not_handed_over", shard=shard, keeper=holder, reason=type(error).__name__)
            return
        if state.keeper == self.me or not state.keeper or state.keeper == holder:
            if shard not in self._books:
                mine = state.keeper == self.me
                self._take(shard, state if mine else self._snapshots.of(shard), handed_over=mine)
        else:
            self._handed[shard] = (state.keeper, b"", self._clock())

    async def _look_after(self, instance: str) -> None:
        try:
            await self._bus.ask(LimitAsks(asks=()), instance, timeout=SIGN_S)
        except NobodyListens:
            self.doubt(instance)
        except NoReply:
            self.suspect(instance)
        except BusError:
            return  # its heartbeats will tell


def _nothing(book: Book, since: float) -> None:
    del book, since
