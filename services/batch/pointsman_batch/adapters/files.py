"""Files: their records and their content, written and read as streams."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from nats.errors import Error as NatsError

from pointsman_batch.adapters.chunks import CHUNK_BYTES, ChunkStore
from pointsman_contracts.batch import StoredFile
from pointsman_contracts.message import MalformedMessage
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

AT_ONCE: Final = 4
"""Chunks of a file that are written or read at once: a store may take a tenth of a second for each."""
LOST_TRIES: Final = 5
"""A chunk that isn't there at one moment may be at the next: a store comes back, a folder is mounted again."""
AGAIN_S: Final = 1.0

_log = Log("files")


class ContentLost(Exception):
    """A chunk of a file isn't there."""


def new_file_id() -> str:
    """An id that no file has."""
    return f"file-{secrets.token_hex(12)}"


def _take_outcome(task: "asyncio.Task[object]") -> None:
    """The one that waits for it may be gone."""
    if not task.cancelled():
        task.exception()


class FileWriter:
    """Writes one file; holds a few chunks at most."""

    def __init__(self, chunks: ChunkStore, file: str) -> None:
        self._chunks: Final = chunks
        self.file: Final = file
        self.size = 0
        self.count = 0
        """Chunks that are written, or on their way."""
        self._begun = bytearray()
        self._writing: set[asyncio.Task[None]] = set()

    async def write(self, data: bytes) -> None:
        """Add bytes. Raises what the `ChunkStore` raises."""
        self.size += len(data)
        self._begun += data
        while len(self._begun) >= CHUNK_BYTES:
            await self._put(bytes(self._begun[:CHUNK_BYTES]))
            del self._begun[:CHUNK_BYTES]

    async def finish(self) -> None:
        """Write the rest; returns when everything is written."""
        if self._begun:
            await self._put(bytes(self._begun))
            self._begun.clear()
        await self._wait_for_room(0)

    async def stop(self) -> None:
        """Write no more; returns when no chunk is on its way."""
        if self._writing:
            # One that a thread is writing can't be stopped.
            await asyncio.wait(self._writing)

    async def _put(self, data: bytes) -> None:
        await self._wait_for_room(AT_ONCE - 1)
        task = asyncio.create_task(self._chunks.put_chunk(self.file, self.count, data))
        task.add_done_callback(_take_outcome)
        self._writing.add(task)
        self.count += 1

    async def _wait_for_room(self, at_most: int) -> None:
        while len(self._writing) > at_most:
            done, self._writing = await asyncio.wait(self._writing, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()


class Files:
    """Every file that is kept. Methods raise OSError, nats errors and TimeoutError when they can't be reached."""

    def __init__(self, records: Bucket, chunks: ChunkStore) -> None:
        self._records: Final = records
        self.chunks: Final = chunks
        self._known: Final[dict[str, StoredFile]] = {}

    def follow(self) -> None:
        """Keep the list of files at hand from now on."""
        self._records.watch(self._put, lambda key: self._known.pop(key, None) and None)

    def begin_file(self, file: str | None = None) -> FileWriter:
        """A writer of a new file, or of the one with this id once more."""
        return FileWriter(self.chunks, file or new_file_id())

    async def add_file(self, record: StoredFile) -> None:
        """Let clients see a file that is written."""
        await self._records.put(record.id, record.encode())
        self._known[record.id] = record

    async def find_file(self, file: str) -> StoredFile | None:
        """The record of a complete file; None when there is none."""
        if not file.startswith("file-") or not file.removeprefix("file-").isalnum():
            return None
        entry = await self._records.get(file)
        record = None if entry is None else StoredFile.decode(entry.value)
        return record if record is not None and record.complete else None

    def list_files(self) -> list[StoredFile]:
        """All files, also incomplete ones, the newest first."""
        return sorted(self._known.values(), key=lambda each: (each.created_ms, each.id), reverse=True)

    async def read_file(self, record: StoredFile, *, patient: bool = False) -> AsyncIterator[bytes]:
        """The content, in chunks. Raises ContentLost. `patient`: waits while the store can't be reached."""
        read = self._read_patiently if patient else self._read_chunk
        ahead: deque[asyncio.Task[bytes]] = deque()
        try:
            for number in range(record.chunks):
                for further in range(number + len(ahead), min(number + AT_ONCE, record.chunks)):
                    ahead.append(asyncio.create_task(read(record, further)))
                    ahead[-1].add_done_callback(_take_outcome)
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()

    async def _read_chunk(self, record: StoredFile, number: int) -> bytes:
        data = await self.chunks.get_chunk(record.id, number)
        if data is None or len(data) != min(CHUNK_BYTES, record.bytes - number * CHUNK_BYTES):
            raise ContentLost(f"chunk {number} of {record.chunks} of {record.id} isn't there, or not whole")
        return data

    async def _read_patiently(self, record: StoredFile, number: int) -> bytes:
        lost = 0
        while True:
            try:
                return await self._read_chunk(record, number)
            except ContentLost:
                lost += 1
                if lost == LOST_TRIES:
                    raise
            except (NatsError, OSError):
                pass  # the store has counted and logged it
            await asyncio.sleep(AGAIN_S)

    async def give_up(self, writer: FileWriter) -> None:
        """Delete a file that was begun."""
        await writer.stop()
        await self.delete_file(writer.file)

    async def delete_file(self, file: str) -> None:
        """Delete a file: its content, then its record, by which a deletion that failed goes on."""
        await self.chunks.delete_chunks(file)
        await self._records.delete(file)
        self._known.pop(file, None)

    def _put(self, entry: Entry) -> None:
        try:
            self._known[entry.key] = StoredFile.decode(entry.value)
        except MalformedMessage as error:
            _log.warning("file_unreadable", file=entry.key, problem=error.problem)
