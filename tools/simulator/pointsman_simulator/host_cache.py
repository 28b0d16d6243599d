"""Host memory below an engine's KV cache: it keeps blocks that the device evicted, and the link brings them back."""

import math
from collections import OrderedDict
from collections.abc import Sequence as Names
from typing import Final

from pointsman_simulator.sequence import Sequence

TOKEN_MS: Final = 0.0026
"""For a token of 131,072 bytes (Llama 3.1 8B) at 50 GB/s: one direction on an H100 with blocks of 2 MB, as vLLM's
"Inside vLLM's New KV Offloading Connector" of 2026-01-08 has it."""


class HostCache:
    """Keeps the least recently used blocks of the device, up to `num_blocks`. A block that is fetched stays."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks: Final = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._stored: dict[int, None] = {}
        self._removed: dict[int, None] = {}

    def keep_block(self, block: int) -> None:
        """The device evicted this block."""
        if block in self._blocks:
            self._blocks.move_to_end(block)
            return
        if len(self._blocks) >= self._num_blocks:
            oldest, _ = self._blocks.popitem(last=False)
            if self._stored.pop(oldest, ...) is not None:
                self._removed[oldest] = None
        self._blocks[block] = None
        if self._removed.pop(block, ...) is not None:
            self._stored[block] = None

    def count_kept(self, blocks: Names[int], first: int, limit: int) -> int:
        """The number of blocks from place `first` on, and before place `limit`, that are here without a gap."""
        kept = self._blocks
        place = first
        while place < min(limit, len(blocks)) and blocks[place] in kept:
            place += 1
        return place - first

    def use_blocks(self, blocks: Names[int]) -> None:
        """These are fetched."""
        for block in blocks:
            self._blocks.move_to_end(block)

    def take_changes(self) -> tuple[list[int], list[int]]:
        """Net changes since the last call: blocks that came, and blocks that left."""
        changes = list(self._stored), list(self._removed)
        self._stored.clear()
        self._removed.clear()
        return changes


class HostLink:
    """From host memory to the device: one fetch after the other."""

    def __init__(self) -> None:
        self._fetching: list[tuple[float, Sequence]] = []
        self._free_at = -math.inf

    def __len__(self) -> int:
        return len(self._fetching)

    @property
    def next_at(self) -> float:
        """When the next fetch ends; infinite without one."""
        return self._fetching[0][0] if self._fetching else math.inf

    def begin_fetch(self, sequence: Sequence, now: float, took_ms: float) -> None:
        """Fetch the blocks of a sequence."""
        self._free_at = max(now, self._free_at) + took_ms
        self._fetching.append((self._free_at, sequence))

    def take_fetched(self, now: float) -> list[Sequence]:
        """The sequences whose blocks are on the device now."""
        fetched: list[Sequence] = []
        while self._fetching and self.next_at <= now:
            fetched.append(self._fetching.pop(0)[1])
        return fetched

    def drop_sequence(self, sequence: Sequence) -> bool:
        """Forget a sequence. False when it isn't here."""
        before = len(self._fetching)
        self._fetching = [each for each in self._fetching if each[1] is not sequence]
        return len(self._fetching) < before
