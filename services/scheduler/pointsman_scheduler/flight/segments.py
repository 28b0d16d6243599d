"""Writes one pool's log, segment after segment.

The event loop packs records: it renames their block hashes, and compresses them. A thread writes them, and packs
snapshots. If it packed records too, it would wait for the interpreter after every library call. A busy event loop wakes
a waiting thread in vain dozens of times before it gives the interpreter up, which costs more than the packing.
"""

import math
import platform
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pointsman_core.config.flight import FlightSettings
from pointsman_flight.frames import FORMAT
from pointsman_flight.header import Header
from pointsman_flight.records import PoliciesUsed, Record, SnapshotPart
from pointsman_flight.salt import Salt
from pointsman_flight.writer import SegmentWriter, folder, remove_oldest
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.flight.backlog import Backlog, EncodedPart
from pointsman_scheduler.flight.freezing import Frozen
from pointsman_scheduler.flight.packing import Packer
from pointsman_scheduler.flight.writing import RecordMaker

SYNC_S: Final = 5.0
"""Time between two calls of fsync for a segment; one more follows at its end."""


class Beginning(NamedTuple):
    """The start of a segment, taken in one turn of the event loop."""

    unix_ns: int
    monotonic: float
    frozen: Frozen | None
    """None at the beginning of a pool's life: nothing was known yet."""
    used: tuple[int, ...]
    """Numbers of the policies in force."""
    gap: str = ""
    missed: int = 0


class Packed(NamedTuple):
    """Records as frames."""

    frames: bytes
    inputs: int
    """How many of them are inputs."""


class SegmentLog:
    """One pool's log. The methods that write may raise OSError; then the log needs another `begin`."""

    def __init__(
        self, pool: PoolScheduler, settings: FlightSettings, directory: Path, salt: Salt, product: str, most: int
    ) -> None:
        """`most`: bytes of records that may wait to be written."""
        self.settings: Final = settings
        self.maker: Final = RecordMaker(salt, settings.hash_ids, frozenset(settings.headers), Backlog(most))
        self.inputs = 0
        """Inputs written so far, or lost."""
        self.bytes = 0
        self._pool: Final = pool.pool
        self._scheduler: Final = pool.scheduler
        self._index_bytes: Final = pool.index.memory().limit
        self._directory: Final = folder(directory, pool.pool)
        self._salt: Final = salt
        self._product: Final = product
        self._open: SegmentWriter | None = None
        self._before: SegmentWriter | None = None
        """The segment that the next one continues."""
        self._index = 0
        self._began = -math.inf
        self._synced = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether there is a segment to write to."""
        return self._open is not None

    def is_due(self, now: float) -> bool:
        """Whether the next segment should begin. A quarter of what may be kept is enough for one."""
        size = self._open.size if self._open is not None else 0
        return now - self._began >= self.settings.segment or size >= self.settings.keep // 4

    def begin_segment(self, start: Beginning) -> None:
        """Begin a segment, and remove the oldest ones."""
        continued, self._before = self._before, None
        self._index += 1
        self.inputs += start.missed
        header = Header(
            format=FORMAT,
            product=self._product,
            pool=self._pool,
            scheduler=self._scheduler,
            index=self._index,
            empty=start.frozen is None,
            follows=continued is not None,
            first_input=self.inputs + 1,
            unix_ns=start.unix_ns,
            monotonic=start.monotonic,
            salt=self._salt.name,
            hashed_ids=self.settings.hash_ids,
            index_bytes=self._index_bytes,
            previous=0 if continued is None else continued.chain,
            gap=start.gap,
            missed=start.missed,
            platform=platform_facts(),
        )
        self._began = self._synced = start.monotonic
        self._open = SegmentWriter(self._directory, header)
        self.bytes += self._open.size
        if start.frozen is not None:
            self._write([*self.maker.list_policies(), PoliciesUsed(start.used)])
            packer = Packer(self._salt, self.settings.hash_ids, self.maker.headers)
            for part in packer.pack_parts(start.frozen):
                self._write([SnapshotPart(part, last=False)])
            self._write([SnapshotPart(b"", last=True)])
        remove_oldest(self._directory, self.settings.keep, self._open.path)

    def pack_records(self, part: EncodedPart) -> bytes:
        """The records as frames for `write`, which continue those packed before. Nothing without an open segment."""
        if self._open is None:
            return b""
        return self._open.frame_records(part.arrays, self._salt.rename_packed(b"".join(part.hashes)))

    def write(self, packed: Packed) -> None:
        """Append these records."""
        segment = self._open
        if segment is not None:
            segment.put(packed.frames)
            self.bytes += len(packed.frames)
        # Only now: what wasn't written wasn't recorded.
        self.inputs += packed.inputs
        now = time.monotonic()
        if segment is not None and now - self._synced >= SYNC_S:
            self._synced = now
            segment.sync_file()

    def end_segment(self, reason: str, dropped: int = 0) -> None:
        """End the segment. The next one continues it, unless inputs were dropped."""
        ended, self._open = self._open, None
        if ended is not None:
            ended.end_file(reason, dropped)
            self._before = None if dropped else ended

    def abandon_segment(self) -> None:
        """Give the segment up after an error."""
        lost, self._open, self._before = self._open, None, None
        if lost is not None:
            lost.abandon_file()

    def _write(self, made: list[Record]) -> None:
        if self._open is not None:
            before = self._open.size
            self._open.write(made)
            self.bytes += self._open.size - before


def platform_facts() -> dict[str, str]:
    """The hardware and libraries that the last digit of a floating-point number depends on."""
    return {
        "machine": platform.machine(),
        "system": sys.platform,
        "python": ".".join(map(str, sys.version_info[:2])),
        "numpy": np.__version__,
    }
