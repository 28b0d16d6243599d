"""Snapshots of shards of counts in the bucket: read, followed, and written while a shard changes.

A writer only replaces the snapshot that it read or wrote before. So of two instances that believe they keep a
shard, one learns that it doesn't.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from pointsman_contracts.limits import SHARDS, LimitShard
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.subjects import kv_key
from pointsman_limits.domain.limits.keeping import Keeping
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

SAVE_S: Final = 0.4
"""Interval of snapshots of a changing shard; at most this much is lost with a keeper."""
LISTED_S: Final = 5.0
"""How long shards wait for the snapshots: limits that count from zero are better than not serving. Budgets don't count
from zero: they need a snapshot that is stored."""

_log = Log("limits")


class SnapshotStore(Protocol):
    """The part of a bucket's interface that snapshots need."""

    async def get(self, key: str) -> Entry | None: ...
    async def replace(self, key: str, value: bytes, revision: int) -> int | None: ...
    def watch(
        self,
        on_put: Callable[[Entry], None],
        on_gone: Callable[[str], None],
        on_listed: Callable[[], None] | None = None,
    ) -> None: ...


class ShardSnapshots:
    """Snapshots of the books that are kept here; a lost shard is removed from them."""

    def __init__(
        self, store: SnapshotStore, keeping: Keeping, metrics: LimitMetrics, clock: Callable[[], float]
    ) -> None:
        self.began = False
        """Whether snapshots are followed, and written."""
        self._store: Final = store
        self._keeping: Final = keeping
        self._books: Final = keeping.books
        self._me: Final = keeping.me
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._records: Final[dict[int, Entry]] = {}
        self._claims: Final[dict[int, tuple[int, str]]] = {}
        """Revision and keeper of the snapshot that the next one of a kept shard replaces."""
        self._blind: Final[set[int]] = set()
        """Kept shards that began at nothing because the snapshots weren't read: they replace none."""
        self._listed = False
        self._known: Final = asyncio.Event()
        self._waiting: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._last_save = 0.0
        self._unsaved = False

    def begin_following(self) -> None:
        """Read the snapshots, and follow them. Needs a running loop; the second call does nothing."""
        if not self.began:
            self.began = True
            self._store.watch(self._recorded, lambda _key: None, self._all_listed)
            self._waiting = asyncio.get_running_loop().call_later(LISTED_S, self._go_without)

    @property
    def is_known(self) -> bool:
        """Whether the snapshots are read, or couldn't be in time. Before that no shard may be taken."""
        return self._known.is_set()

    async def wait_until_ready(self) -> None:
        """Wait until the snapshots are read or couldn't be in time, if they are needed."""
        if self.began:
            await self._known.wait()

    def newest_of(self, shard: int) -> LimitShard | None:
        entry = self._records.get(shard)
        if entry is None:
            return None
        try:
            return LimitShard.decode(entry.value)
        except MalformedMessage as error:
            _log.error("limit_snapshot_unreadable", error, shard=shard)
            return None

    def record_claim(self, shard: int, *, given: bool = False) -> None:
        """Record in the bucket that the shard is kept here from now on. `given`: its last keeper handed it over."""
        entry, before = self._records.get(shard), self.newest_of(shard)
        self._claims[shard] = (entry.revision if entry is not None else 0, before.keeper if before is not None else "")
        if entry is None and not given and not self._listed:
            self._blind.add(shard)
        if before is not None and before.spent_to is not None:
            self._books[shard].budgets.note_saved()
        self.save_soon()

    def tick(self) -> None:
        """Call a few times a second."""
        now = asyncio.get_running_loop().time()
        if now - self._last_save >= SAVE_S:
            self._last_save = now
            self.save_soon()

    def save_soon(self) -> None:
        """Write the changed ones."""
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save_all())

    async def give_up(self) -> None:
        """Write all a last time, as kept by no instance."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._saving is not None:
            await asyncio.wait([self._saving])
        for shard in list(self._books):
            await self._save(shard, "")

    def _all_listed(self) -> None:
        self._listed = True
        self._known.set()
        for shard in self._blind & self._records.keys():
            self._lose(shard)
        self._blind.clear()

    def _go_without(self) -> None:
        if not self._listed:
            _log.warning("limits_without_snapshots", waited_s=LISTED_S, hint="counts begin at nothing")
            self._known.set()

    def _recorded(self, entry: Entry) -> None:
        if entry.key.isdecimal() and int(entry.key) < SHARDS:
            self._records[int(entry.key)] = entry
            self._keeping.journal.note_saved(int(entry.key), self._clock())

    async def _save_all(self) -> None:
        # Shards that are taken over during a save are claimed in the same round.
        while changed := [shard for shard, book in self._books.items() if book.has_changed]:
            for shard in changed:
                if not await self._save(shard, self._me):
                    return
            if all(self._books[shard].has_changed for shard in changed if shard in self._books):
                return

    async def _save(self, shard: int, keeper: str) -> bool:
        """Replace the previous snapshot. False when the bucket can't be written."""
        book = self._books.get(shard)
        if book is None:
            return True
        key = kv_key(LimitShard, str(shard))
        revision, before = self._claims[shard]
        state = book.build_snapshot(keeper, self._clock(), self._keeping.leases.epoch_of(shard))
        try:
            written = await self._store.replace(key, state.encode(), revision)
            if written is None:
                await self._overwritten(shard, key, before)
                return True
        except (JetStreamError, NatsError, OSError, TimeoutError) as error:
            book.has_changed = True
            self._metrics.unsaved.inc()
            if not self._unsaved:
                self._unsaved = True
                _log.warning("limits_not_saved", reason=jetstream_words(error), hint="logged once")
            return False
        self._claims[shard] = (written, keeper)
        self._blind.discard(shard)
        if state.spent_to is not None:
            book.budgets.note_saved()
        if self._unsaved:
            self._unsaved = False
            _log.info("limits_saved_again")
        return True

    async def _overwritten(self, shard: int, key: str, before: str) -> None:
        """Another instance wrote: the previous keeper, whose last snapshot was late, or a new one."""
        entry = await self._store.get(key)
        book = self._books.get(shard)
        if book is None:
            return
        if entry is None:
            self._claims[shard] = (0, before)
            book.has_changed = True
            return
        self._records[shard] = entry
        state = self.newest_of(shard)
        epoch = self._keeping.leases.epoch_of(shard)
        late = state is None or state.keeper in ("", self._me, before) or state.epoch < epoch
        if late and shard not in self._blind:
            self._claims[shard] = (entry.revision, before)
            book.has_changed = True
            return
        self._lose(shard)

    def _lose(self, shard: int) -> None:
        """Stop keeping a shard: what is stored has counts that this keeper doesn't have."""
        self._blind.discard(shard)
        if self._books.pop(shard, None) is None:
            return
        self._keeping.leases.release_shard(shard)
        self._metrics.count_shard_move("lost")
        state = self.newest_of(shard)
        _log.warning("limit_shard_lost", shard=shard, keeper="" if state is None else state.keeper)
