"""A paged KV cache: blocks with reference counts, prefix reuse, and eviction of the least recently used."""

from collections import OrderedDict
from collections.abc import Callable, Sequence


class KvCache:
    """Blocks are named by integers that identify a whole prefix (a chained hash), so equal name means equal KV.

    A block is *active* while a sequence uses it, *idle* when only kept for reuse. Partial blocks (the unfinished
    tail of a sequence) have no name and are only counted.
    """

    def __init__(self, num_blocks: int, evicted: Callable[[int], None] | None = None) -> None:
        """`evicted` is called with each block that is evicted."""
        self.num_blocks = num_blocks
        self._evicted = evicted
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._partial = 0
        self._stored: dict[int, None] = {}
        self._removed: dict[int, None] = {}

    @property
    def used_blocks(self) -> int:
        """Blocks some sequence holds right now."""
        return len(self._references) + self._partial

    @property
    def available_blocks(self) -> int:
        """Blocks that can be taken: never used, or idle and evictable."""
        return self.num_blocks - self.used_blocks

    def __contains__(self, block: int) -> bool:
        return block in self._references or block in self._idle

    def references(self, block: int) -> int:
        return self._references.get(block, 0)

    def count_cached(self, blocks: Sequence[int], limit: int) -> int:
        """The number of leading blocks (at most `limit`) that are cached."""
        references, idle = self._references, self._idle
        hits = 0
        for block in blocks:
            if hits >= limit or not (block in references or block in idle):
                break
            hits += 1
        return hits

    def idle_among(self, blocks: Sequence[int]) -> int:
        """The number of idle blocks among these: using them takes available blocks without computing."""
        idle = self._idle
        return sum(1 for block in blocks if block in idle)

    def acquire_blocks(self, blocks: Sequence[int]) -> None:
        """One more reference to each block, storing those not cached. The caller checked that they fit."""
        references, idle = self._references, self._idle
        for block in blocks:
            count = references.get(block)
            if count is not None:
                references[block] = count + 1
            elif block in idle:
                del idle[block]
                references[block] = 1
            else:
                self._make_room()
                references[block] = 1
                if self._removed.pop(block, ...) is not None:
                    self._stored[block] = None

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """One reference less to each. The suffix becomes idle first, so that the prefix survives longest."""
        references, idle = self._references, self._idle
        for block in reversed(blocks):
            count = references[block]
            if count == 1:
                del references[block]
                idle[block] = None
            else:
                references[block] = count - 1

    def acquire_partial(self) -> None:
        self._make_room()
        self._partial += 1

    def release_partial(self) -> None:
        self._partial -= 1

    def drop_idle_blocks(self) -> None:
        """Forget all idle blocks; no change reports it."""
        for block in self._idle:
            self._stored.pop(block, None)
        self._idle.clear()

    def take_changes(self) -> tuple[list[int], list[int]]:
        """Net changes since the last call: blocks that became cached, blocks that no longer are."""
        changes = (list(self._stored), list(self._removed))
        self._stored.clear()
        self._removed.clear()
        return changes

    def _make_room(self) -> None:
        if len(self._references) + self._partial + len(self._idle) >= self.num_blocks:
            block, _ = self._idle.popitem(last=False)
            if self._stored.pop(block, ...) is not None:
                self._removed[block] = None
            if self._evicted is not None:
                self._evicted(block)
