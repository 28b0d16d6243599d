"""The results of lines: each is written once, by whichever replica comes first."""

import asyncio
from typing import Final

from msgspec.structs import replace

from pointsman_batch.adapters.chunks import CHUNK_BYTES, ChunkStore
from pointsman_batch.adapters.files import AGAIN_S, LOST_TRIES, FileWriter, new_file_id
from pointsman_contracts.batch import LineResult
from pointsman_runtime.jetstream.buckets import Bucket


class LineResults:
    """LineResults by batch and line. Methods raise OSError, nats errors and TimeoutError."""

    def __init__(self, bucket: Bucket, chunks: ChunkStore) -> None:
        self._bucket: Final = bucket
        self._chunks: Final = chunks

    async def write_once(self, batch: str, line: int, result: LineResult, body: bytes = b"") -> bool:
        """Write the result of a line; False when it has one already, which stays.

        The server compares: the write names revision 0, which the key has only while there is none.
        """
        apart: str = ""
        if len(body) > CHUNK_BYTES:
            # Another replica may write its own answer at the same time.
            writer = FileWriter(self._chunks, new_file_id())
            await writer.write(body)
            await writer.finish()
            apart, body = writer.file, b""
            result = replace(result, apart=apart, chunks=writer.count)
        written = await self._bucket.replace(f"{batch}.{line}", result.encode_with(body), 0) is not None
        if apart and not written:
            await self._chunks.delete_chunks(apart)
        return written

    async def read_result(self, batch: str, line: int) -> tuple[LineResult, bytes | None] | None:
        """The result of a line, and the body of its answer, None if it isn't there; None when the line has none."""
        entry = await self._bucket.get(f"{batch}.{line}")
        if entry is None:
            return None
        result, body = LineResult.decode_with(entry.value)
        if not result.chunks:
            return result, body
        for _ in range(LOST_TRIES):
            pieces = [await self._chunks.get_chunk(result.apart, number) for number in range(result.chunks)]
            found = [piece for piece in pieces if piece is not None]
            if len(found) == result.chunks:
                return result, b"".join(found)
            await asyncio.sleep(AGAIN_S)
        return result, None

    async def list_lines(self, batch: str) -> list[int]:
        return [int(key.rpartition(".")[2]) for key in await self._bucket.list_keys(f"{batch}.*")]

    async def delete_results(self, batch: str) -> None:
        await self._bucket.purge_keys(f"{batch}.*")
