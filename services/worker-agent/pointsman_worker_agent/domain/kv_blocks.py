"""From the engine's blocks to ours: same tokens, other size, other hash.

One of ours may span several of the engine's; it is held while all of these are.
"""

import sys
from array import array
from typing import Final

import xxhash

from pointsman_contracts.kv import OWN_TIERS
from pointsman_core.settled_target import salt
from pointsman_worker_agent.domain.engine_block import Delta, EngineBlock
from pointsman_worker_agent.domain.kv_wire import BlocksRemoved, BlocksStored, Cleared, EngineHash, Event
from pointsman_worker_agent.domain.lower_tiers import LowerTiers

TOKEN_BYTES: Final = 4


class RankBlocks:
    """The cache of one data-parallel rank."""

    def __init__(self, block_tokens: int) -> None:
        self.unknown = 0
        """Blocks whose beginning is unknown, or that hold more than tokens."""
        self.engine_block_tokens: int | None = None
        """Tokens in one block of the engine's, as it reported last."""
        self._bytes: Final = block_tokens * TOKEN_BYTES
        self._block_tokens: Final = block_tokens
        self._blocks: dict[EngineHash, EngineBlock] = {}
        self._ends: dict[EngineHash, set[EngineHash]] = {}
        """Member of a group → the last blocks of the groups that it is a member of."""
        self._held: set[EngineHash] = set()
        """Last blocks of the groups that are complete."""
        self.lower: Final = LowerTiers()
        self._tells_extras = False
        """Whether events of the device say what a block's hash covers besides tokens."""
        self._suspects: dict[EngineHash, None] = {}
        """Blocks known when events were lost, or when the publisher was, oldest first: some of them may be gone since.
        One that is reported again isn't suspected any more."""

    def note_lost_events(self) -> None:
        """Events were lost. Known blocks stay, but are dropped first when there are more than the cache can hold:
        clearing them would forget a warm cache that the engine doesn't report again."""
        self._suspects = dict.fromkeys(self._blocks)

    def drop_doubted(self) -> Delta:
        """All blocks left that were known when `doubt` was called and that weren't reported since."""
        delta = Delta()
        for name in self._suspects:
            self._drop_block(name, delta)
        self._suspects = {}
        return delta

    def apply_event(self, event: Event, model: str, capacity: int | None) -> Delta:
        """Apply an event. `model` is the name of the engine's model in requests without an adapter, `capacity` the size
        of the cache in the engine's blocks, if known."""
        delta = Delta()
        if not isinstance(event, Cleared) and event.tier:
            return self._apply_lower(event, model)
        if isinstance(event, BlocksStored):
            self._tells_extras = event.extra is not None
            self._store(event, model, delta)
        elif isinstance(event, BlocksRemoved):
            for each in event.hashes:
                self._remove(each, delta)
        else:
            delta = self.clear()
        while self._suspects and capacity is not None and len(self._blocks) > capacity:
            name = next(iter(self._suspects))
            del self._suspects[name]
            self._drop_block(name, delta)
        return delta

    def clear(self) -> Delta:
        """Everything left."""
        gone = [self._blocks[end].salted for end in self._held if end in self._blocks]
        self._blocks.clear()
        self._ends.clear()
        self._held.clear()
        self._suspects.clear()
        return Delta(removed=gone)

    def _apply_lower(self, event: BlocksStored | BlocksRemoved, model: str) -> Delta:
        """Apply an event of a tier below the device."""
        delta, lower = Delta(tier=event.tier), self.lower
        if isinstance(event, BlocksRemoved):
            for each in event.hashes:
                lower.remove_block(each, delta)
        elif event.tokens and (event.extra is not None or not self._tells_extras):
            self._store(event, model, delta)
        else:  # vLLM: names alone, or tokens that may belong to images or a salt, which it doesn't say
            for each in event.hashes:
                block = self._find(each)
                if block is None:
                    self.unknown += 1
                else:
                    lower.add_block(each, block, delta)
        return delta

    def _find(self, name: EngineHash) -> EngineBlock | None:
        """A block that is in any tier."""
        return self._blocks.get(name) or self.lower.find_block(name)

    def _store(self, event: BlocksStored, model: str, delta: Delta) -> None:
        if not event.tier:
            self.engine_block_tokens = event.block_size
        if self._block_tokens % event.block_size:
            self.unknown += len(event.hashes)
            return
        name = event.lora or model
        mask = salt(name, event.lora or "")
        if event.parent is None:
            root = salt("", _cache_salt(event), "ids")
            before = EngineBlock(root, mask, b"", (), ours=root)
        else:
            known = self._find(event.parent)
            if known is None:
                self.unknown += len(event.hashes)
                return
            before = known
            self._suspects.pop(event.parent, None)
        for position, each in enumerate(event.hashes):
            if _is_opaque(event, position):
                self.unknown += len(event.hashes) - position
                return
            start = position * event.block_size
            tokens = event.tokens[start : start + event.block_size]
            if event.tier:
                before = self._find(each) or self._make_block(each, tokens, before)
                self.lower.add_block(each, before, delta)
            else:
                before = self._add(each, tokens, before, delta)

    def _add(self, name: EngineHash, tokens: list[int], before: EngineBlock, delta: Delta) -> EngineBlock:
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = self._make_block(name, tokens, before)
            if block.ours is not None:
                for member in block.members:
                    self._ends.setdefault(member, set()).add(name)
            self._complete(self._ends.get(name, ()), delta)
        elif name in self._suspects:
            del self._suspects[name]
            block.copies = 0
        block.copies += 1
        return block

    def _make_block(self, name: EngineHash, tokens: list[int], before: EngineBlock) -> EngineBlock:
        complete = before.ours is not None
        parent = before.ours if before.ours is not None else before.parent
        pending = _little_endian(tokens) if complete else before.pending + _little_endian(tokens)
        members = (name,) if complete else (*before.members, name)
        block = EngineBlock(parent, before.mask, pending, members)
        if len(pending) >= self._bytes:
            block.ours = xxhash.xxh3_64_intdigest(pending, parent)
            block.pending = b""
        return block

    def _complete(self, ends: "set[EngineHash] | tuple[()]", delta: Delta) -> None:
        """Groups that have all their blocks, now that one more is there, are held."""
        for end in ends:
            last = self._blocks.get(end)
            if last is not None and end not in self._held and all(member in self._blocks for member in last.members):
                self._held.add(end)
                delta.stored.append(last.salted)

    def _drop_block(self, name: EngineHash, delta: Delta) -> None:
        """A block left, however often it was stored."""
        if name in self._blocks:
            self._blocks[name].copies = 1
            self._remove(name, delta)

    def _remove(self, name: EngineHash, delta: Delta) -> None:
        block = self._blocks.get(name)
        if block is None:
            return
        block.copies -= 1
        if block.copies > 0:
            return
        for end in self._ends.get(name, ()):
            if end in self._held:
                self._held.discard(end)
                delta.removed.append(self._blocks[end].salted)
        del self._blocks[name]
        if block.ours is not None:
            for member in block.members:
                ends = self._ends[member]
                ends.discard(name)
                if not ends:
                    del self._ends[member]


class EngineBlocks:
    """The caches of all ranks of an engine: a block is held while one of them has it."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens: Final = block_tokens
        self._ranks: dict[int, RankBlocks] = {}
        self._held: dict[int, int] = {}
        """Block → ranks whose devices hold it."""
        self._lower: dict[str, dict[int, int]] = {}
        """Tier below the device → block → ranks that hold it there."""

    @property
    def unknown(self) -> int:
        """Blocks that couldn't be followed."""
        return sum(rank.unknown for rank in self._ranks.values())

    @property
    def size(self) -> int:
        """The number of blocks held on devices."""
        return len(self._held)

    def held(self) -> list[int]:
        """Every block held on a device."""
        return list(self._held)

    def list_lower(self) -> dict[str, list[int]]:
        """Every block held below the devices, by tier."""
        return {tier: list(held) for tier, held in self._lower.items()}

    def count_lower(self) -> dict[str, int]:
        """How many blocks each tier below the devices holds."""
        return {tier: len(held) for tier, held in self._lower.items()}

    def apply_event(self, rank: int, event: Event, model: str, capacity: int | None = None) -> Delta:
        """Apply an event of one rank. Returns what `RankBlocks.apply_event` returns."""
        return self._merge(self._of(rank).apply_event(event, model, capacity))

    @property
    def engine_block_tokens(self) -> int | None:
        """Tokens in one block of the engine's, as it reported last; None before it did."""
        return next((rank.engine_block_tokens for rank in self._ranks.values() if rank.engine_block_tokens), None)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have sent an event."""
        return list(self._ranks)

    def note_lost_events(self, rank: int) -> None:
        self._of(rank).note_lost_events()

    def doubt_lower(self, rank: int) -> None:
        """The publisher of one rank is gone: its engine may be, too, with what it kept below the device."""
        self._of(rank).lower.doubt_blocks()

    def drop_doubted(self, rank: int) -> list[Delta]:
        """Forget the blocks of one rank that were doubted and weren't reported since. A shared store outlives it."""
        ranked = self._of(rank)
        deltas = [ranked.drop_doubted(), *ranked.lower.drop_doubted(OWN_TIERS)]
        return [self._merge(delta) for delta in deltas]

    def clear(self, rank: int) -> list[Delta]:
        """Forget the blocks of one rank. A shared store outlives it."""
        return [self._merge(self._of(rank).clear()), *self.clear_lower(rank)]

    def clear_lower(self, rank: int) -> list[Delta]:
        """Forget the blocks that one rank keeps below its device. A shared store outlives it."""
        return [self._merge(delta) for delta in self._of(rank).lower.clear_tiers(OWN_TIERS)]

    def _of(self, rank: int) -> RankBlocks:
        blocks = self._ranks.get(rank)
        if blocks is None:
            blocks = self._ranks[rank] = RankBlocks(self._block_tokens)
        return blocks

    def _merge(self, delta: Delta) -> Delta:
        """The change at the engine that follows from a change at one rank."""
        if not (delta.stored or delta.removed):
            return delta
        merged = Delta(tier=delta.tier)
        held = self._lower.setdefault(delta.tier, {}) if delta.tier else self._held
        for block in delta.stored:
            count = held.get(block, 0)
            held[block] = count + 1
            if not count:
                merged.stored.append(block)
        for block in delta.removed:
            count = held[block] - 1
            if count:
                held[block] = count
            else:
                del held[block]
                merged.removed.append(block)
        return merged


def _little_endian(tokens: list[int]) -> bytes:
    words = array("I", tokens)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _extras(event: BlocksStored, position: int) -> list[object]:
    """The parts of a block's hash besides its tokens and its adapter."""
    keys = event.extra[position] if event.extra is not None and position < len(event.extra) else None
    if not isinstance(keys, list | tuple):
        return []
    # Any value that the engine sent; only its hash is used.
    return [key for key in keys if key != event.lora]  # pyright: ignore[reportUnknownVariableType]


def _cache_salt(event: BlocksStored) -> str:
    """The request's `cache_salt`, which only the first block's hash names."""
    extras = _extras(event, 0)
    return extras[0] if len(extras) == 1 and isinstance(extras[0], str) else ""


def _is_opaque(event: BlocksStored, position: int) -> bool:
    """Whether images or embeddings are in the block: equal tokens don't mean equal blocks then."""
    extras = _extras(event, position)
    first = position == 0 and event.parent is None
    return bool(extras) and not (first and len(extras) == 1 and isinstance(extras[0], str))
