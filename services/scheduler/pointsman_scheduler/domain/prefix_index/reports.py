"""The reports of one engine about its blocks, in order: they give the blocks that it held at any moment."""

from array import array
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_scheduler.domain.prefix_index.recency import FrozenRecency


class Reports:
    """Blocks as they came off the wire, with the time and whether they came or left. Nothing in it ever changes, so a
    copy for a snapshot takes no time."""

    __slots__ = ("_ats", "_blobs", "_stored", "logged")

    def __init__(self) -> None:
        self.logged = 0
        """Hashes in all of them."""
        self._ats: list[float] = []
        self._stored: list[bool] = []
        self._blobs: list[bytes] = []

    def add_report(self, blocks: bytes, at: float, *, stored: bool) -> None:
        """Add a report: hashes of 8 bytes, little-endian."""
        self._ats.append(at)
        self._stored.append(stored)
        self._blobs.append(blocks)
        self.logged += len(blocks) // 8

    def list_stored(self) -> Blocks:
        """Each block once that was ever stored, in ascending order; some have left since."""
        came = [blob for blob, stored in zip(self._blobs, self._stored, strict=True) if stored]
        blocks = np.sort(np.frombuffer(b"".join(came), dtype="<u8"))  # a fifth of the time of `np.unique`
        return blocks[np.concatenate(([True], blocks[1:] != blocks[:-1]))] if len(blocks) else blocks

    def replace_all(self, blocks: Blocks, at: float) -> None:
        """Replace everything by these blocks."""
        self._ats, self._stored, self._blobs = [at], [True], [blocks.astype("<u8").tobytes()]
        self.logged = len(blocks)

    def take_latest(self, most: int) -> list[bytes]:
        """Remove the latest reports with up to so many hashes. Returns those of stored blocks."""
        taken: list[bytes] = []
        while self._blobs and most > 0:
            blob, at, stored = self._blobs.pop(), self._ats.pop(), self._stored.pop()
            self.logged -= len(blob) // 8
            if len(blob) > most * 8:
                self.add_report(blob[: -most * 8], at, stored=stored)
                blob = blob[-most * 8 :]
            most -= len(blob) // 8
            if stored:
                taken.append(blob)
        return taken

    def promise_copy(self) -> "PromisedReports":
        """A copy as of now."""
        return PromisedReports(self._ats.copy(), self._stored.copy(), self._blobs.copy())


class PromisedReports:
    """A copy, from which a snapshot's table is made in any thread."""

    __slots__ = ("_ats", "_blobs", "_stored")

    def __init__(self, ats: list[float], stored: list[bool], blobs: list[bytes]) -> None:
        self._ats: Final = ats
        self._stored: Final = stored
        self._blobs: Final = blobs

    def keep(self) -> FrozenRecency:
        """The blocks held, in the form of a table: those reported last are the most recently used."""
        held: dict[int, float] = {}
        for at, stored, blob in zip(self._ats, self._stored, self._blobs, strict=True):
            blocks: list[int] = np.frombuffer(blob, dtype="<u8").tolist()
            for block in blocks:
                held.pop(block, None)
            if stored:
                held.update(dict.fromkeys(blocks, at))
        runs: list[tuple[int, float, array[int]]] = []
        stamps: dict[int, int] = {}
        for block, at in held.items():
            if not runs or runs[-1][1] != at:
                runs.append((len(runs) + 1, at, array("Q")))
            runs[-1][2].append(block)
            stamps[block] = len(runs)
        return FrozenRecency(
            held=stamps,
            newest=len(runs),
            logged=len(stamps),
            oldest=[],
            oldest_run=None,
            cleaned=[],
            rest=runs,
            flags=(False, False, False),
        )
