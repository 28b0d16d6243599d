"""The content of files, in chunks: in a bucket on the bus, or in a folder that all replicas share."""

import asyncio
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from nats.errors import Error as NatsError

from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log

CHUNK_BYTES: Final = 512 * 1024
"""Half of what a NATS server takes in a message by default."""

T = TypeVar("T")

_log = Log("files")


class ChunkStore(Protocol):
    """Keeps chunks by file and number. Methods raise OSError, nats errors and TimeoutError."""

    async def put_chunk(self, file: str, number: int, data: bytes) -> None:
        """Keep one; one that is there already is replaced."""
        ...

    async def get_chunk(self, file: str, number: int) -> bytes | None:
        """Read one; None when it isn't there."""
        ...

    async def delete_chunks(self, file: str) -> None: ...


class BucketChunks:
    """ChunkStore in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket: Final = bucket

    async def put_chunk(self, file: str, number: int, data: bytes) -> None:
        """See `ChunkStore.put_chunk`."""
        await self._bucket.put(f"{file}.{number}", data)

    async def get_chunk(self, file: str, number: int) -> bytes | None:
        """See `ChunkStore.get_chunk`."""
        entry = await self._bucket.get(f"{file}.{number}")
        return None if entry is None else entry.value

    async def delete_chunks(self, file: str) -> None:
        """See `ChunkStore.delete_chunks`."""
        await self._bucket.purge_keys(f"{file}.*")


class FolderChunks:
    """ChunkStore in a folder: a folder for each file, a file for each chunk."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    async def put_chunk(self, file: str, number: int, data: bytes) -> None:
        """See `ChunkStore.put_chunk`."""
        await asyncio.to_thread(self._write, file, number, data)

    async def get_chunk(self, file: str, number: int) -> bytes | None:
        """See `ChunkStore.get_chunk`."""
        try:
            return await asyncio.to_thread((self._folder / file / str(number)).read_bytes)
        except FileNotFoundError:
            return None

    async def delete_chunks(self, file: str) -> None:
        """See `ChunkStore.delete_chunks`."""
        await asyncio.to_thread(shutil.rmtree, self._folder / file, ignore_errors=True)

    def _write(self, file: str, number: int, data: bytes) -> None:
        folder = self._folder / file
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{number}.part"
        try:
            part.write_bytes(data)
        except OSError:
            # On a full disk, the part would take the room that others may free.
            part.unlink(missing_ok=True)
            raise
        # A process that dies while it writes leaves no half of a chunk under the chunk's name.
        part.replace(folder / str(number))


class WatchedChunks:
    """A ChunkStore whose failures are counted, and logged once until it works again."""

    def __init__(self, store: ChunkStore, failures: Counter) -> None:
        self._store: Final = store
        self._failures: Final = failures.labels()
        self._failing = False

    async def put_chunk(self, file: str, number: int, data: bytes) -> None:
        """See `ChunkStore.put_chunk`."""
        await self._call_store(self._store.put_chunk(file, number, data))

    async def get_chunk(self, file: str, number: int) -> bytes | None:
        """See `ChunkStore.get_chunk`."""
        return await self._call_store(self._store.get_chunk(file, number))

    async def delete_chunks(self, file: str) -> None:
        """See `ChunkStore.delete_chunks`."""
        await self._call_store(self._store.delete_chunks(file))

    async def _call_store(self, call: Awaitable[T]) -> T:
        try:
            result = await call
        except (OSError, NatsError) as error:
            self._failures.inc()
            if not self._failing:
                self._failing = True
                hint = "batches wait until the store works again; uploads and downloads are refused"
                _log.error("file_store_failing", reason=jetstream_words(error), hint=hint)
            raise
        if self._failing:
            self._failing = False
            _log.info("file_store_again")
        return result
