"""A file is written and read in several chunks at once, and is whole or not there."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from pointsman_batch.adapters.chunks import CHUNK_BYTES
from pointsman_batch.adapters.files import AT_ONCE, ContentLost, Files, FileWriter
from pointsman_contracts.batch import StoredFile
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_testing.fake_bucket import FakeBucket

CONTENT = b"".join(bytes([number]) * CHUNK_BYTES for number in range(9)) + b"rest"


class SlowStore:
    """Takes longest for the first of several chunks. `fails`: says which chunks it refuses."""

    def __init__(self, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.chunks: dict[int, bytes] = {}
        self.at_once = self.most = 0
        self._fails = fails

    async def _turn(self, number: int) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        for _ in range(20 - number):
            await asyncio.sleep(0)
        self.at_once -= 1
        if self._fails(number):
            raise OSError("the store is full")

    async def put_chunk(self, file: str, number: int, data: bytes) -> None:
        await self._turn(number)
        self.chunks[number] = data

    async def get_chunk(self, file: str, number: int) -> bytes | None:
        await self._turn(number)
        return self.chunks.get(number)

    async def delete_chunks(self, file: str) -> None:
        self.chunks.clear()


async def read(store: SlowStore, chunks: int) -> bytes:
    files = Files(cast("Bucket", FakeBucket()), store)
    record = StoredFile(id="f", owner="", filename="", purpose="", bytes=len(CONTENT), chunks=chunks, created_ms=0)
    return b"".join([piece async for piece in files.read_file(record)])


async def test_a_file_has_its_chunks_in_order_whichever_is_written_or_read_first() -> None:
    store = SlowStore()
    writer = FileWriter(store, "f")
    await writer.write(CONTENT)
    await writer.finish()
    assert (store.most, store.at_once, writer.count) == (AT_ONCE, 0, 10)
    assert await read(store, writer.count) == CONTENT
    assert store.most == AT_ONCE


async def test_a_file_of_which_a_chunk_is_gone_is_reported_at_that_chunk() -> None:
    store = SlowStore()
    writer = FileWriter(store, "f")
    await writer.write(CONTENT)
    await writer.finish()
    del store.chunks[7]
    with pytest.raises(ContentLost, match="chunk 7 of 10"):
        await read(store, writer.count)


@pytest.mark.parametrize("number", [0, 5, 9])
async def test_a_store_that_refuses_a_chunk_refuses_the_file_and_keeps_nothing_of_it(number: int) -> None:
    store = SlowStore(lambda asked: asked == number)
    writer = FileWriter(store, "f")

    async def write() -> None:
        await writer.write(CONTENT)
        await writer.finish()

    with pytest.raises(OSError, match="full"):
        await write()
    await Files(cast("Bucket", FakeBucket()), store).give_up(writer)
    assert (store.chunks, store.at_once) == ({}, 0)
