"""The records of batches: watched, and changed by compare and set."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pointsman_contracts.batch import BatchRecord
from pointsman_contracts.message import MalformedMessage
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

_log = Log("batches")

Change = Callable[[BatchRecord], BatchRecord | None]
"""The record as it is to be; None to leave it as it is."""


class SeenBatch(NamedTuple):
    """A record, its revision, and the monotonic time at which it came."""

    record: BatchRecord
    revision: int
    at: float


class Batches:
    """Every batch. Methods raise nats errors and TimeoutError when JetStream can't be reached."""

    def __init__(self, bucket: Bucket, changed: Callable[[SeenBatch], None]) -> None:
        """`changed` is called for each record that comes."""
        self._bucket: Final = bucket
        self._changed: Final = changed
        self.known: Final[dict[str, SeenBatch]] = {}

    def follow(self) -> None:
        """Keep all records at hand from now on."""
        self._bucket.watch(self._put, lambda key: self.known.pop(key, None) and None)

    async def add_batch(self, record: BatchRecord) -> None:
        """Keep a new one."""
        revision = await self._bucket.put(record.id, record.encode())
        self._keep(record, revision)

    async def find_batch(self, batch: str) -> BatchRecord | None:
        """The record as it is now; None when there is none."""
        found = await self._read(batch)
        return None if found is None else found.record

    async def change_batch(self, batch: str, change: Change) -> BatchRecord | None:
        """Change a record, even while others change it; returns it as it is now, None when it is gone."""
        while True:
            found = await self._read(batch)
            if found is None:
                return None
            changed = change(found.record)
            if changed is None:
                return found.record
            revision = await self._bucket.replace(batch, changed.encode(), found.revision)
            if revision is not None:
                self._keep(changed, revision)
                return changed

    async def delete_batch(self, batch: str) -> None:
        """Forget one."""
        await self._bucket.delete(batch)
        self.known.pop(batch, None)

    def list_batches(self) -> list[BatchRecord]:
        """All of them, the newest first."""
        records = [seen.record for seen in self.known.values()]
        return sorted(records, key=lambda each: (each.created_ms, each.id), reverse=True)

    async def _read(self, batch: str) -> SeenBatch | None:
        if not batch.replace("_", "").isalnum() or not batch.isascii():
            return None
        entry = await self._bucket.get(batch)
        if entry is None:
            return None
        return SeenBatch(BatchRecord.decode(entry.value), entry.revision, time.monotonic())

    def _put(self, entry: Entry) -> None:
        try:
            self._keep(BatchRecord.decode(entry.value), entry.revision)
        except MalformedMessage as error:
            _log.warning("batch_unreadable", batch=entry.key, problem=error.problem)

    def _keep(self, record: BatchRecord, revision: int) -> None:
        known = self.known.get(record.id)
        if known is None or revision > known.revision:
            seen = self.known[record.id] = SeenBatch(record, revision, time.monotonic())
            self._changed(seen)
