"""Which worker holds which blocks. A `Life` is the blocks of one worker, from its start or the last clearing of its
cache to the next. `Masks` has for each block the lives that hold it: one mask for each block, one bit for each life."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby, repeat
from operator import eq, itemgetter, sub
from typing import Final, NamedTuple

import numpy as np

from pointsman_plugins.scheduling.arrays import Blocks, Bools, Floats
from pointsman_scheduler.domain.prefix_index.recency import Recency
from pointsman_scheduler.domain.prefix_index.reports import Reports

FILLED_SINGLY: Final = 16
"""Up to this many workers are compared one by one."""
MASKS_KEPT: Final = 65536


class Dump(NamedTuple):
    """The blocks that one worker is known to hold: equal lengths, least recently used first."""

    hashes: Blocks
    ages: Floats
    """Seconds since the last use."""
    stored: Bools
    """Whether the engine reported it; otherwise it was predicted."""


@dataclass(slots=True)
class Life:
    """The index's knowledge of one life of a worker."""

    bit: int
    """The worker's place in every mask."""
    capacity: int | None
    clearings: int = 0
    stored: Reports = field(default_factory=Reports)
    """Blocks that the engine reported. In a snapshot they are a table of blocks."""
    computed: Recency = field(default_factory=Recency)
    """Blocks of answered requests."""
    awaited: Recency = field(default_factory=Recency)
    """Blocks of answered requests that the engine will report soon."""
    claims: Counter[int] = field(default_factory=Counter[int])
    """Blocks of requests on their way, with how many requests have each."""

    def claim(self, blocks: Mapping[int, int]) -> None:
        """A request with these blocks, each once, is on its way. The values are ones."""
        claims = self.claims
        # New ones are taken over at half the cost of counting.
        if claims.keys().isdisjoint(blocks):
            super(Counter, claims).update(blocks)  # without counting
        else:
            claims.update(blocks.keys())

    def unclaim(self, blocks: Sequence[int]) -> Sequence[int]:
        """It isn't any more. Returns those of its blocks that no other request claims."""
        claims = self.claims
        counts = [*map(claims.__getitem__, blocks)]
        shared = 0
        if sum(counts) > len(blocks):
            # Requests share the beginning of their prompts, and mostly no more.
            shared = counts.index(1) if 1 in counts else len(counts)
            super(Counter, claims).update(zip(blocks[:shared], map(sub, counts, repeat(1)), strict=False))
            if shared == len(counts):
                return ()
            blocks, counts = blocks[shared:], counts[shared:]
            if sum(counts) > len(blocks):
                super(Counter, claims).update(zip(blocks, map(sub, counts, repeat(1)), strict=False))
                blocks = [*compress(blocks, map(eq, counts, repeat(1)))]
        deque(map(claims.pop, blocks), maxlen=0)
        return blocks

    def unpredicted(self, blocks: Sequence[int]) -> Sequence[int]:
        """Those of the blocks that stand in no table of predictions; claims don't count."""
        for held in (self.computed.held, self.awaited.held):
            if held:
                blocks = [block for block in blocks if block not in held]
        return blocks


class Masks:
    """Block hash to the set of lives that hold it, so that a lookup costs one step a block however many workers
    there are."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        """Block → mask, of blocks with at least one holder. One dictionary, because several would avoid the pause in
        which it grows (30 ms at a million blocks) but make every match half as slow again."""
        self._known: dict[int, int] = {}
        self._free: list[int] = []
        self._bits = 0
        self._columns = 0
        self._column_of: dict[int, int] = {}
        self._laid_out = 0
        self._places = np.zeros(0, dtype=np.intp)
        self._asked: Sequence[int] | None = None
        """The blocks of the last match; None when masks or columns have changed since."""
        self._answer: tuple[int, Floats] = 0, np.zeros(0)
        """The last match's argument `each`, and its result."""

    def new_bit(self) -> int:
        """A bit that no life has."""
        if self._free:
            return self._free.pop()
        self._bits += 1
        return 1 << (self._bits - 1)

    def free_bit(self, bit: int) -> None:
        """Free the bit of a life that holds no more blocks."""
        self._free.append(bit)

    def hold(self, blocks: Iterable[int], bit: int) -> None:
        masks, known = self.held, self._known
        self._asked = None
        # Neighbouring blocks mostly have the same holders.
        for mask, alike in groupby(blocks, masks.get):
            if mask is None:
                after = bit
            elif mask & bit:
                continue
            else:
                after = mask | bit
            # Few different masks exist; one object for each keeps ten million blocks small.
            masks.update(dict.fromkeys(alike, known.setdefault(after, after)))

    def release(self, blocks: Sequence[int], bit: int) -> None:
        """This life no longer holds these blocks, each once."""
        masks, others = self.held, ~bit
        self._asked = None
        found = [*map(masks.__getitem__, blocks)]
        if found.count(bit) == len(found):
            deque(map(masks.pop, blocks), maxlen=0)
            return
        for mask, alike in groupby(zip(found, blocks, strict=True), key=itemgetter(0)):
            these = [block for _, block in alike]
            left = mask & others
            if left:
                masks.update(dict.fromkeys(these, self._known.setdefault(left, left)))
            else:
                deque(map(masks.pop, these), maxlen=0)
        if len(self._known) > MASKS_KEPT:
            self._known = {}  # existing masks are shared; from now on new ones are made

    def forget_answer(self) -> None:
        """The lives' other blocks have changed: the last answer isn't valid any more."""
        self._asked = None

    def bits(self) -> tuple[int, list[int]]:
        """How many bits were given out, and those that are free."""
        return self._bits, self._free.copy()

    def restart(self, bits: int, free: list[int]) -> None:
        """Forget all blocks; bits are as `bits` once returned."""
        self.held.clear()
        self._asked = None
        self._known = {}
        self._bits, self._free = bits, free.copy()

    def lay_out(self, bits: Sequence[int]) -> None:
        """Set the lives, in order, that `match` answers for; 0 stands for a column without a life."""
        self._asked = None
        self._columns = len(bits)
        self._column_of = {bit: column for column, bit in enumerate(bits) if bit}
        self._laid_out = sum(self._column_of)
        self._places = np.full(self._bits, -1, dtype=np.intp)
        for bit, column in self._column_of.items():
            self._places[bit.bit_length() - 1] = column

    def match(
        self,
        blocks: Sequence[int],
        each: int,
        matched: Floats | None = None,
        reported: Callable[[], Sequence[int]] | None = None,
    ) -> Floats:
        """For each column, how many leading blocks its life holds without a gap, times `each`. `matched`: an array of
        zeros to write it to. `reported`: masks of lives that hold the blocks besides. The caller changes neither
        `blocks` nor the result: a request that waited for its engine may ask again before anything has changed."""
        if blocks is self._asked and self._answer[0] == each:
            if matched is None:
                return self._answer[1]
            matched[:] = self._answer[1]
            return matched
        if matched is None:
            matched = np.zeros(self._columns)
        self._asked, self._answer = blocks, (each, matched)
        held = self._laid_out
        length = 0
        predicted = map(self.held.get, blocks)
        # Neighbouring blocks mostly have the same holders, and equal masks are mostly one object.
        runs = groupby(predicted) if reported is None else groupby(zip(predicted, reported(), strict=True))
        for masks, alike in runs:
            both = held & (_union(masks) if isinstance(masks, tuple) else masks or 0)
            if both != held:
                if length:
                    self._fill(matched, held ^ both, length * each)
                held = both
                if not held:
                    return matched
            length += len([*alike])
        if length:
            self._fill(matched, held, length * each)
        return matched

    def _fill(self, matched: Floats, lives: int, held: int) -> None:
        if lives == self._laid_out and len(self._column_of) == self._columns:
            matched.fill(held)
            return
        if lives.bit_count() <= FILLED_SINGLY:
            while lives:
                bit = lives & -lives
                matched[self._column_of[bit]] = held
                lives ^= bit
            return
        raw = lives.to_bytes((self._bits + 7) // 8, "little")
        bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8), count=self._bits, bitorder="little")
        matched[self._places[bits.nonzero()[0]]] = held


def _union(masks: tuple[int | None, int]) -> int:
    return (masks[0] or 0) | masks[1]
