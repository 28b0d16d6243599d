"""Snapshots of shards of counts in the bucket: read, followed, and written while a shard changes.

A writer only replaces the snapshot that it read or wrote before. So of two instances that believe they keep a
shard, one learns that it doesn't.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from pydantic import ValidationError

from pointsman_contracts.limits import SHARDS, LimitShard
from pointsman_contracts.subjects import kv_key
from pointsman_preprocessor.adapters.limit_metrics import LimitMetrics
from pointsman_preprocessor.domain.limits.keeping import Keeping
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

SAVE_S: Final = 0.4
"""Interval of snapshots of a changing shard; at most this much is lost with a keeper."""
LISTED_S: Final = 5.0
"""How long the start waits for the snapshots: counting from zero is better than not serving."""

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
        self._listed: Final = asyncio.Event()
        self._saving: asyncio.Task[None] | None = None
        self._last_save = 0.0
        self._unsaved = False

    def begin(self) -> None:
        """Read the snapshots, and follow them. Needs a running loop; the second call does nothing."""
        if not self.began:
            self.began = True
            self._store.watch(self._recorded, lambda _key: None, self._listed.set)

    async def ready(self) -> None:
        """Wait until the snapshots are read, if they are needed."""
        if not self.began:
            return
        try:
            async with asyncio.timeout(LISTED_S):
                await self._listed.wait()
        except TimeoutError:
            _log.warning("limits_without_snapshots", waited_s=LISTED_S, hint="counts begin at nothing")

    def knows(self, shard: int) -> bool:
        """Whether the shard has a snapshot."""
        return shard in self._records

    def of(self, shard: int) -> LimitShard | None:
        """The newest snapshot."""
        entry = self._records.get(shard)
        if entry is None:
            return None
        try:
            return LimitShard.decode(entry.value)
        except ValidationError as error:
            _log.error("limit_snapshot_unreadable", error, shard=shard)
            return None

    def claim(self, shard: int) -> None:
        """Record in the bucket that the shard is kept here from now on."""
        entry, before = self._records.get(shard), self.of(shard)
        self._claims[shard] = (entry.revision if entry is not None else 0, before.keeper if before is not None else "")
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
        if self._saving is not None:
            await asyncio.wait([self._saving])
        for shard in list(self._books):
            await self._save(shard, "")

    def _recorded(self, entry: Entry) -> None:
        if entry.key.isdecimal() and int(entry.key) < SHARDS:
            self._records[int(entry.key)] = entry
            self._keeping.journal.saved(int(entry.key), self._clock())

    async def _save_all(self) -> None:
        # Shards that are taken over during a save are claimed in the same round.
        while changed := [shard for shard, book in self._books.items() if book.changed]:
            for shard in changed:
                if not await self._save(shard, self._me):
                    return
            if all(self._books[shard].changed for shard in changed if shard in self._books):
                return

    async def _save(self, shard: int, keeper: str) -> bool:
        """Replace the previous snapshot. False when the bucket can't be written."""
        book = self._books.get(shard)
        if book is None:
            return True
        key = kv_key(LimitShard, str(shard))
        revision, before = self._claims[shard]
        value = book.snapshot(keeper, self._clock(), self._keeping.leases.epoch(shard)).encode()
        try:
            written = await self._store.replace(key, value, revision)
            if written is None:
                await self._overwritten(shard, key, before)
                return True
        except (JetStreamError, NatsError, OSError, TimeoutError) as error:
            book.changed = True
            self._metrics.unsaved.inc()
            if not self._unsaved:
                self._unsaved = True
                _log.warning("limits_not_saved", reason=jetstream_words(error), hint="logged once")
            return False
        self._claims[shard] = (written, keeper)
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
            book.changed = True
            return
        self._records[shard] = entry
        state = self.of(shard)
        epoch = self._keeping.leases.epoch(shard)
        if state is None or state.keeper in ("", self._me, before) or state.epoch < epoch:
            self._claims[shard] = (entry.revision, before)
            book.changed = True
            return
        del self._books[shard]
        self._keeping.leases.release(shard)
        self._metrics.moved("lost")
        _log.warning("limit_shard_lost", shard=shard, keeper=state.keeper)
