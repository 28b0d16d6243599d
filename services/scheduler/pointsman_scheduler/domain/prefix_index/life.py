"""The blocks of one worker, from its start or the last clearing of its cache to the next."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pointsman_plugins.scheduling.arrays import Blocks, Bools, Floats
from pointsman_scheduler.domain.prefix_index.recency import Recency


class Dump(NamedTuple):
    """The blocks that one worker is known to hold: equal lengths, least recently used first."""

    hashes: Blocks
    ages: Floats
    """Seconds since the last use."""
    stored: Bools
    """Whether the engine reported it; otherwise it was predicted."""


@dataclass(slots=True)
class Life:
    """What the index knows of one life of a worker."""

    bit: int
    """The worker's place in every mask."""
    capacity: int | None
    clearings: int = 0
    stored: Recency = field(default_factory=Recency)
    """Blocks that the engine reported."""
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
        if sum(map(claims.__getitem__, blocks)) == len(blocks):
            deque(map(claims.pop, blocks), maxlen=0)
            return blocks
        free: list[int] = []
        for block in blocks:
            count = claims[block]
            if count > 1:
                claims[block] = count - 1
            else:
                del claims[block]
                free.append(block)
        return free

    def dump(self, now: float) -> Dump:
        """The blocks of `stored` and `computed`. Requests on their way aren't part of it, since they are reservations;
        nor are blocks that the engine will report soon."""
        rows = [(used, block, False) for block, used in self.computed.entries()]
        rows += [(used, block, True) for block, used in self.stored.entries()]
        rows.sort(key=lambda row: row[0])
        return Dump(
            np.array([block for _, block, _ in rows], dtype=np.uint64),
            now - np.array([used for used, _, _ in rows], dtype=np.float64),
            np.array([stored for _, _, stored in rows], dtype=np.bool_),
        )

    def unheld(self, blocks: Sequence[int]) -> Sequence[int]:
        """Those of the blocks that stand in no table; claims don't count."""
        for held in (self.stored.held, self.computed.held, self.awaited.held):
            if held:
                blocks = [block for block in blocks if block not in held]
        return blocks
