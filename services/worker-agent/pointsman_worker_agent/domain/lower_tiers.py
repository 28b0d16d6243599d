"""The blocks that one rank of an engine keeps below its device: in host memory, on a disk, in a shared store."""

from collections.abc import Iterable
from typing import Final

from pointsman_worker_agent.domain.engine_block import Delta, EngineBlock
from pointsman_worker_agent.domain.kv_wire import EngineHash

MOST_BLOCKS: Final = 524_288
"""Blocks of one tier, some 400 bytes each: of 16 tokens they are 8.4 million tokens, 1 TB at 128 KB a token. Beyond,
those are forgotten that were reported first: vLLM's tier of files reports no removal."""


class LowerTiers:
    """Each tier by its name. A tier counts the copies of a block, because vLLM reports a block once for each chunk that
    has it, and its removal likewise."""

    def __init__(self) -> None:
        self._blocks: dict[EngineHash, EngineBlock] = {}
        self._copies: dict[str, dict[EngineHash, int]] = {}
        """Tier → block → copies, in the order of the reports."""
        self._ends: dict[EngineHash, set[EngineHash]] = {}
        """Member of a group → the last blocks of the groups that it is a member of."""
        self._held: dict[str, set[EngineHash]] = {}
        """Tier → last blocks of the groups that are complete there."""
        self._doubted: dict[str, set[EngineHash]] = {}
        """Blocks known when the publisher was lost."""

    def find_block(self, name: EngineHash) -> EngineBlock | None:
        """A block that any of the tiers holds."""
        return self._blocks.get(name)

    def add_block(self, name: EngineHash, block: EngineBlock, delta: Delta) -> None:
        """The tier of `delta` has a copy more of this block."""
        tier = delta.tier
        copies = self._copies.setdefault(tier, {})
        count = copies.pop(name, 0)
        doubted = self._doubted.get(tier)
        if doubted and name in doubted:
            doubted.discard(name)
            count = 0
        copies[name] = count + 1
        if name not in self._blocks:
            self._blocks[name] = block
            if block.ours is not None:
                for member in block.members:
                    self._ends.setdefault(member, set()).add(name)
        held = self._held.setdefault(tier, set())
        for end in self._ends.get(name, ()):
            last = self._blocks[end]
            if end not in held and all(member in copies for member in last.members):
                held.add(end)
                delta.stored.append(last.salted)
        if len(copies) > MOST_BLOCKS:
            self._drop_block(next(iter(copies)), delta)

    def remove_block(self, name: EngineHash, delta: Delta) -> None:
        """The tier of `delta` has a copy less of this block. The other tiers keep theirs."""
        copies = self._copies.get(delta.tier, {})
        count = copies.get(name, 0)
        if count > 1:
            copies[name] = count - 1
        elif count:
            self._drop_block(name, delta)

    def doubt_blocks(self) -> None:
        """The publisher was lost: blocks that aren't reported again may be gone."""
        self._doubted = {tier: set(copies) for tier, copies in self._copies.items()}

    def drop_doubted(self, tiers: Iterable[str]) -> list[Delta]:
        """Blocks left these tiers that were doubted and weren't reported since."""
        deltas = [Delta(tier=tier) for tier in tiers]
        for delta in deltas:
            for name in self._doubted.pop(delta.tier, ()):
                self._drop_block(name, delta)
        return deltas

    def clear_tiers(self, tiers: Iterable[str]) -> list[Delta]:
        """Everything left these tiers."""
        deltas = [Delta(tier=tier) for tier in tiers]
        for delta in deltas:
            for name in list(self._copies.get(delta.tier, ())):
                self._drop_block(name, delta)
        return deltas

    def _drop_block(self, name: EngineHash, delta: Delta) -> None:
        """All copies of a block left the tier of `delta`."""
        if self._copies.get(delta.tier, {}).pop(name, None) is None:
            return
        held = self._held[delta.tier]
        for end in self._ends.get(name, ()):
            if end in held:
                held.discard(end)
                delta.removed.append(self._blocks[end].salted)
        if not any(name in copies for copies in self._copies.values()):
            self._forget_block(name, self._blocks.pop(name))

    def _forget_block(self, name: EngineHash, block: EngineBlock) -> None:
        for member in block.members if block.ours is not None else ():
            ends = self._ends[member]
            ends.discard(name)
            if not ends:
                del self._ends[member]
