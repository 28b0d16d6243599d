"""Keeps this preprocessor's shards of the limits' counts, and proves that it does.

The live instances determine which preprocessor should keep a shard; a lease proves that it keeps it. The last keeper
provides the shard's counts: a live one hands them over; a dead one leaves its last snapshot in the bucket, and the
grants that it has published since.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection
from typing import Final

from pointsman_contracts.limits import SHARDS, LimitHandOver, LimitKept, LimitShard
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.subjects import ANY
from pointsman_journey.heartbeat import Heartbeat
from pointsman_limits.domain.limits.book import Book
from pointsman_limits.domain.limits.handing_over import HandOvers
from pointsman_limits.domain.limits.keeping import Keeping
from pointsman_limits.keepers.keeper_ranks import KeeperRanks
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_snapshots import ShardSnapshots, SnapshotStore
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoListener
from pointsman_runtime.telling.logs import Log

HAND_OVER_S: Final = 0.5
"""Timeout of a keeper that hands over a shard."""
LISTENED_S: Final = 5.0
"""How long the start waits for the reports of all keepers."""
SAID_S: Final = 0.005
"""Minimum time between two reports about a shard whose proof requests wait for."""

_log = Log("limits")


class ShardKeeper:
    """One of a process. `clock` gives unix seconds that never go back, and goes on while the process is stopped."""

    def __init__(
        self, bus: Bus, heartbeat: Heartbeat, store: SnapshotStore, metrics: LimitMetrics, clock: Callable[[], float]
    ) -> None:
        self.me: Final = bus.process.instance
        self.ranks: Final = KeeperRanks(bus, heartbeat)
        self.on_taken: Callable[[Book, float], None] = _nothing
        """Called with a shard that is now kept here, and the time of its known counts."""
        self.on_kept: Callable[[], None] = _nothing_kept
        """Called when another shard is kept here."""
        self._bus: Final = bus
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._keeping: Final = Keeping(self.me, secrets.token_hex(8))
        self._keeping.on_grant = self._tell_soon
        self.count: Final = self._keeping.count_request
        """Count a request in the book that `book` has just returned."""
        self._leases: Final = self._keeping.leases
        self._books: Final = self._keeping.books
        self._snapshots: Final = ShardSnapshots(store, self._keeping, metrics, clock)
        self._hand_overs: Final = HandOvers(self.me, self._leases)
        self._fetching: Final[dict[int, asyncio.Task[None]]] = {}
        self._listening: Final = asyncio.Event()
        self._said_at = 0.0
        self._telling = False
        metrics.set_sources(lambda: len(self._books), lambda: sum(book.open_charges for book in self._books.values()))

    @property
    def is_settled(self) -> bool:
        """Whether all shards that should be kept here are."""
        now = self._clock()
        mine = [shard for shard in range(SHARDS) if self.ranks.keeper_of(shard) == self.me]
        return self._leases.hears_everyone(now) and all(self._leases.holds_shard(shard, now) for shard in mine)

    def begin_keeping(self) -> None:
        """Start, once limits are configured. Needs a running loop; the second call does nothing."""
        if not self._snapshots.began:
            self._bus.listen(LimitKept, self.receive_report, ANY)
            self._snapshots.begin_following()

    async def wait_until_ready(self) -> None:
        """Wait until earlier counts are known, if they are needed, and which instance has them."""
        if not self._snapshots.began:
            return
        await self._snapshots.wait_until_ready()
        try:
            async with asyncio.timeout(LISTENED_S):
                await self._listening.wait()
        except TimeoutError:
            _log.warning("limits_without_leases", waited_s=LISTENED_S, hint="nothing is counted until they are proved")

    def tick(self) -> None:
        """Call a few times a second."""
        if self._snapshots.began:
            self.ranks.refresh_instances()
            now = self._clock()
            for shard in range(SHARDS):
                if self.ranks.keeper_of(shard) == self.me:
                    self._seek(shard, now)
            self._say(now)
            self._snapshots.tick()

    async def close(self) -> None:
        """Give everything up, so that peers continue where this instance stops."""
        self.ranks.close()
        for task in self._fetching.values():
            task.cancel()
        await self._snapshots.give_up()
        self._books.clear()
        for shard in range(SHARDS):
            self._leases.release_shard(shard)
        self._say(self._clock())

    def book_or_keeper(self, shard: int, now: float) -> Book | str:
        """The counts of a shard, if it is proved now that this instance keeps it. Otherwise the preprocessor to ask:
        this one while its proof is pending."""
        if self._leases.holds_shard(shard, now):
            return self._books.get(shard) or self._take(shard, now)
        if not self._bus.connected and not self._leases.has_peers and self._snapshots.is_known:
            # A bundle decides without the bus, and it has no peer that could keep the shard.
            return self._books.get(shard) or self._take(shard, now)
        if self._leases.epoch_of(shard):
            if now - self._said_at >= SAID_S:
                self._say(now)
            return self.me
        keeper = self.ranks.keeper_of(shard)
        return keeper if keeper != self.me else self._seek(shard, now) or self.me

    def find_book(self, shard: int) -> Book | None:
        """The counts of a shard that is kept here, or was before its lease ran out."""
        return self._books.get(shard)

    def save_soon(self) -> None:
        """Write the changed snapshots now."""
        self._snapshots.save_soon()

    def kept_books(self) -> Collection[Book]:
        """The counts of all shards."""
        return self._books.values()

    def receive_report(self, kept: LimitKept | LimitKept) -> None:
        """Take a preprocessor's report of the shards that it keeps; also this one's."""
        now = self._clock()
        for shard in self._keeping.receive_report(kept, now):
            self._metrics.count_shard_move("lost")
            _log.warning("limit_shard_lost", shard=shard, keeper=kept.keeper)
        if not self._leases.is_own_report(kept.run):
            if self._keeping.has_unpublished:
                self._publish_report()
            return
        if not kept.epochs:
            # Its own grants, which prove nothing.
            return
        for shard in range(SHARDS):
            # Requests that end in the meantime have to be counted, whether or not a request asks.
            if shard not in self._books and self._leases.holds_shard(shard, now):
                self._take(shard, now)
        if self._leases.hears_everyone(now):
            self._listening.set()
        if self._leases.may_prove_claim:
            self._say(now)

    def hand_over(self, query: LimitHandOver) -> bytes:
        """Give a shard to the instance that should keep it now."""
        now = self._clock()
        state = self._keeping.hand_over_shard(query.shard, query.to, now)
        if state is not None:
            written = state.encode()
            self._hand_overs.note_handed(query.shard, query.to, written, now)
            self._metrics.count_shard_move("handed_over")
            return written
        if (written := self._hand_overs.find_answer(query.shard, query.to, now)) is not None:
            return written
        keeper = self.me if self._leases.epoch_of(query.shard) else self._holder(query.shard, now)
        return LimitShard(shard=query.shard, keeper=keeper, at_ms=round(now * 1000)).encode()

    def _seek(self, shard: int, now: float) -> str:
        """Get a shard that should be kept here, but isn't. Returns the preprocessor that still keeps it."""
        if self._leases.epoch_of(shard):
            return ""
        holder = self._holder(shard, now)
        if not holder:
            if not self._snapshots.is_known:
                # Its counts would begin at nothing.
                return ""
            state = self._snapshots.newest_of(shard)
            self._leases.claim_shard(shard, now, state.epoch if state is not None else 0)
        elif shard not in self._fetching:
            task = self._fetching[shard] = asyncio.get_running_loop().create_task(self._fetch(shard, holder))
            task.add_done_callback(lambda _: self._fetching.pop(shard, None))
        return holder

    def _holder(self, shard: int, now: float) -> str:
        return self._hand_overs.find_holder(shard, self._snapshots.newest_of(shard), self.ranks.is_alive, now)

    def _take(self, shard: int, now: float) -> Book:
        self._hand_overs.forget_handed(shard)
        given = self._keeping.is_given(shard)
        book, since = self._keeping.take_book(shard, self._snapshots.newest_of(shard), now)
        if since is not None:
            self.on_taken(book, since)
            self._metrics.count_shard_move("taken_over")
        self._snapshots.record_claim(shard, given=given)
        self.on_kept()
        return book

    async def _fetch(self, shard: int, holder: str) -> None:
        try:
            query = LimitHandOver(shard=shard, to=self.me)
            state = LimitShard.decode(await self._bus.ask(query, holder, timeout=HAND_OVER_S))
        except NoListener:
            self.ranks.doubt_instance(holder)
            return
        except (BusError, MalformedMessage) as error:
            _log.warning("limit_shard_not_handed_over", shard=shard, keeper=holder, reason=type(error).__name__)
            return
        now = self._clock()
        if state.keeper == self.me:
            self._keeping.accept_handover(state, holder, now)
            self._say(now)
        else:
            self._hand_overs.note_refused(shard, holder, now)

    def _say(self, now: float) -> None:
        self._said_at = now
        # When the report comes back, peers have the grants before it.
        self._publish_report()
        # A lease is proved when this keeper's own report comes back through the server, after the reports of others.
        # While the bus is disconnected no lease is proved, and so no request is counted.
        with contextlib.suppress(BusError):
            self._bus.publish_via_server(self._keeping.make_report(now, self._bus.connections), self.me)

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            self._bus.link.soon(self._publish_report)

    def _publish_report(self) -> None:
        self._telling = False
        if self._keeping.has_unpublished:
            with contextlib.suppress(BusError):
                self._bus.publish_to_peers(self._keeping.take_unpublished(self._clock()), self.me)


def _nothing(book: Book, since: float) -> None:
    del book, since


def _nothing_kept() -> None:
    return
