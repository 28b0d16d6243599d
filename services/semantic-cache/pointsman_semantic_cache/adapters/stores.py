"""The stores of a configuration, and their snapshots."""

import asyncio
from pathlib import Path
from typing import Final

from pointsman_core.config import Cache
from pointsman_runtime.configuring.secret_references import ReferenceMissing, read_secret
from pointsman_runtime.telling.logs import Log
from pointsman_semantic_cache.adapters import snapshot
from pointsman_semantic_cache.adapters.postgres_store import PostgresStore
from pointsman_semantic_cache.adapters.redis_store import RedisStore
from pointsman_semantic_cache.domain.entry import CacheEntry, Partition
from pointsman_semantic_cache.domain.memory import MemoryStore
from pointsman_semantic_cache.domain.store import EntryStore, StoreUnavailable

FILE: Final = "answers.snapshot"

_log = Log("store")


class Stores:
    """One store in this process, and one for each database."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: for snapshots of what this process keeps."""
        self.memory: Final = MemoryStore()
        self._databases: dict[str, PostgresStore | RedisStore] = {}
        self._file = None if folder is None else folder / FILE
        self._written = 0
        self._writing: asyncio.Task[None] | None = None

    def store_of(self, cache: Cache) -> EntryStore:
        """Where a cache's answers are kept. Raises StoreUnavailable."""
        reference = cache.store.url
        if reference is None:
            return self.memory
        store = self._databases.get(reference)
        if store is None:
            try:
                kind = RedisStore if cache.store.use == "redis" else PostgresStore
                store = self._databases[reference] = kind(read_secret(reference))
            except ReferenceMissing as missing:
                raise StoreUnavailable(str(missing)) from missing
        return store

    def used_stores(self) -> list[EntryStore]:
        """Every store that was in use."""
        return [self.memory, *self._databases.values()]

    def load_snapshot(self, now_ms: int) -> None:
        """Load the answers that the previous process stored and that haven't expired."""
        if self._file is None or not self._file.exists():
            return
        try:
            entries = snapshot.read(self._file)
        except (OSError, snapshot.SnapshotUnreadable) as problem:
            _log.error(
                "snapshot_unreadable",
                file=str(self._file),
                reason=str(problem),
                hint="the service starts with an empty cache",
            )
            return
        for partition, entry in entries:
            if entry.expires_ms > now_ms:
                self.memory.store_answer(partition, entry, _UNBOUNDED)
        self._written = self.memory.changes
        _log.info("snapshot_loaded", entries=len(self.memory))

    def tick(self, now_ms: int) -> None:
        """Delete expired answers, and write a snapshot if anything changed."""
        self.memory.expire_answers(now_ms)
        if self._file is not None and self._written != self.memory.changes:
            self._begin(self._file)

    async def renew_snapshot(self) -> None:
        """Take the snapshot away, which may have what the memory has forgotten, and begin another. Raises
        StoreUnavailable."""
        if self._file is None:
            return
        if self._writing is not None:
            await self._writing
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{self._file} can't be removed: {error.strerror}") from error
        self._written = _NEVER
        self._begin(self._file)

    async def close(self) -> None:
        """Write the last changes, and close connections."""
        if self._writing is not None:
            await self._writing
        if self._file is not None and self._written != self.memory.changes:
            await self._write(self._file)
        for store in self._databases.values():
            await store.close()

    def _begin(self, file: Path) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(file))

    async def _write(self, file: Path) -> None:
        changes = self.memory.changes
        entries: list[tuple[Partition, CacheEntry]] = list(self.memory.list_entries())
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(snapshot.write, file, entries)
        except OSError as error:
            _log.error("snapshot_unwritten", error, file=str(file))
            return
        self._written = changes


_UNBOUNDED: Final = 2**63
_NEVER: Final = -1
