"""Writes the segments of one pool and scheduler, and removes the oldest ones."""

import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from pointsman_flight.frames import HASHES, MAGIC, framed
from pointsman_flight.header import Header
from pointsman_flight.records import Record, SegmentEnded

SUFFIX: Final = ".flight"
FRAME_BYTES: Final = 4 * 2**20
"""A frame is closed beyond this many bytes before compression."""


def folder(directory: Path, pool: str) -> Path:
    """Where the segments of a pool are."""
    return directory / quote(pool, safe="")


class SegmentWriter:
    """One open segment. Every method may raise OSError; then `abandon` it."""

    def __init__(self, directory: Path, header: Header) -> None:
        """Create the file and write its header."""
        at_ms = header.unix_ns // 1_000_000
        self.path: Final = directory / f"{at_ms:014d}-{quote(header.scheduler, safe='')}-{header.index:06d}{SUFFIX}"
        directory.mkdir(parents=True, exist_ok=True)
        self._encoder: Final = msgspec.msgpack.Encoder()
        self.chain = 0
        """The checksum of the last frame that was made."""
        self.size = 0
        """Bytes written."""
        self._file: Final[FileIO] = self.path.open("xb", buffering=0)
        try:
            frame, self.chain = framed(self._encoder.encode(header), 0)
            self.put(MAGIC + frame)
        except OSError:
            self._file.close()
            self.path.unlink(missing_ok=True)
            raise

    def write(self, records: Sequence[Record]) -> None:
        """Append records, in one frame or several. They are in the operating system's hands when this returns."""
        frames: list[bytes] = []
        arrays, size = list[bytes](), 0
        for record in records:
            arrays.append(self._encoder.encode((record,)))
            size += len(arrays[-1])
            if size > FRAME_BYTES:
                frames.append(self.frame_records(arrays))
                arrays, size = [], 0
        frames.append(self.frame_records(arrays))
        self.put(b"".join(frames))

    def frame_records(self, arrays: Sequence[bytes], hashes: bytes = b"") -> bytes:
        """Arrays of records in msgpack, and the block hashes of these records in their order, as frames. They continue
        the frames made before: put them into the file in this order."""
        frames: list[bytes] = []
        if hashes:
            frame, self.chain = framed(hashes, self.chain, HASHES)
            frames.append(frame)
        if arrays:
            frame, self.chain = framed(b"".join((_array(len(arrays)), *arrays)), self.chain)
            frames.append(frame)
        return b"".join(frames)

    def put(self, frames: bytes) -> None:
        """Append frames. They are in the operating system's hands when this returns."""
        view = memoryview(frames)
        while view:
            view = view[self._file.write(view) :]
        self.size += len(frames)

    def sync_file(self) -> None:
        """Have the operating system write the file to disk."""
        os.fsync(self._file.fileno())

    def end_file(self, reason: str, dropped: int = 0) -> None:
        """Write the last record, and close the file on disk."""
        try:
            self.write([SegmentEnded(reason, dropped)])
            self.sync_file()
        finally:
            self._file.close()

    def abandon_file(self) -> None:
        """Close the file after an error, at its last whole frame if that is possible."""
        try:
            os.ftruncate(self._file.fileno(), self.size)
        except OSError:
            pass  # then its tail is torn, which readers cut
        finally:
            self._file.close()


def _array(count: int) -> bytes:
    """The head of a msgpack array."""
    return b"\xdd" + count.to_bytes(4, "big")


def remove_oldest(directory: Path, keep_bytes: int, open_segment: Path) -> list[Path]:
    """Remove the oldest segments of a pool until all fit into `keep_bytes`; the open one stays. Returns them."""
    sizes = [(path, path.stat().st_size) for path in sorted(directory.glob(f"*{SUFFIX}"))]
    over = sum(size for _, size in sizes) - keep_bytes
    removed: list[Path] = []
    for path, size in sizes:
        if over <= 0 or path == open_segment:
            break
        path.unlink(missing_ok=True)
        removed.append(path)
        over -= size
    return removed
