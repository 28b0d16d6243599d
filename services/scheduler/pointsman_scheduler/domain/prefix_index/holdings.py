"""The blocks that a pool's workers hold, by their engines' reports and by predictions, within a bound of memory."""

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_scheduler.domain.prefix_index.below import MOST_STORES, NAMED, SHARED, TierReach, is_tier, list_reach
from pointsman_scheduler.domain.prefix_index.life import Life, Masks
from pointsman_scheduler.domain.prefix_index.memory import (
    BLOCK_BYTES,
    HOLDING_BYTES,
    REPORT_BYTES,
    REPORTED_BYTES,
)
from pointsman_scheduler.domain.prefix_index.recency import Recency
from pointsman_scheduler.domain.prefix_index.reported import ReportedBlocks
from pointsman_scheduler.domain.prefix_index.reports import Reports

EVICTED_TOGETHER: Final = 64
DRAIN_BUDGET: Final = 512
"""Holdings of a former life that one call removes besides its own work."""


class Holdings:
    """Which worker holds which blocks, for each of the reasons that `PrefixIndex` names."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes: Final = max_bytes
        self._spare = 0
        """Bytes that are free at least: the size is computed only when blocks may have used them up."""
        self._now = 0.0
        self._masks = Masks()
        self._reported = ReportedBlocks(max_bytes)
        self._lives: dict[int, Life] = {}
        self._next_life = 1
        self._below: dict[int, dict[str, Life]] = {}
        """Life of a worker → tier below its device → holder. Stores with a name stand under `SHARED` as well."""
        self.reach: list[TierReach] = []
        """The laid-out workers that have tiers below their devices."""
        self._rows: list[int] = []
        self._retired: list[Life] = []
        self._holdings: int = 0
        """Pairs of a worker and a block that it is predicted to hold."""
        self._open_blocks = 0
        """Blocks of requests on their way."""
        self._ranking: list[tuple[float, int, Recency, Life]] = []
        """A heap of the tables that hold something, each once, by when its oldest block was used or earlier."""
        self._ranks = 0
        self._evicted_capacity = self._evicted_memory = 0

    def join(self, kv_blocks: int | None = None) -> int:
        """Start a life of a worker. Returns its number. `kv_blocks`: how many blocks of the index its cache has room
        for; None when unknown."""
        life = self._next_life
        self._next_life += 1
        self._lives[life] = self._follow(Life(self._masks.new_bit(), kv_blocks))
        return life

    def describe(self, life: int, kv_blocks: int | None) -> None:
        """Change the facts that `join` took about a worker."""
        self._lives[life].capacity = kv_blocks

    def lay_out(self, lives: Sequence[int]) -> None:
        """Set the workers, in order, that `match` answers for."""
        self._rows = list(lives)
        self._lay_out()

    def forget(self, life: int) -> None:
        """End the worker's life: drop its blocks; its open requests settle to nothing. No-op for a life that has ended
        already."""
        ended = self._lives.pop(life, None)
        for tier, held in self._below.pop(life, {}).items():
            if not tier.startswith(NAMED):
                self._retire(held)
        if ended is not None:
            self._retire(ended)

    def cleared(self, life: int) -> None:
        """The engine dropped its whole cache. Claims of requests on their way are dropped too: the engine will report
        their blocks."""
        found = self._lives.get(life)
        if found is None:
            return
        fresh = Life(self._masks.new_bit(), found.capacity, clearings=found.clearings + 1)
        self._lives[life] = self._follow(fresh)
        self._retire(found)

    def stored(self, life: int, blocks: Blocks, now: float) -> None:
        """The engine has these blocks. No-op for a life that ended."""
        found = self._lives.get(life)
        if found is not None:
            self._advance(now)
            self._reported.store_blocks(found.bit, blocks, self._now)
            self._end_predictions(found, blocks)

    def removed(self, life: int, blocks: Blocks, now: float) -> None:
        """The engine dropped these blocks. Requests on their way there will compute them again, so blocks that
        they claim stay. No-op for a life that ended."""
        found = self._lives.get(life)
        if found is not None:
            self._advance(now)
            self._reported.remove_blocks(found.bit, blocks, self._now)
            self._end_predictions(found, blocks)

    def retold(self, life: int, blocks: Blocks, now: float) -> None:
        """The engine has these blocks and no others: its earlier reports are void. Predictions stay, but for those of
        reported blocks. No-op for a life that ended."""
        found = self._lives.get(life)
        if found is None:
            return
        self._advance(now)
        if found.stored.logged:
            self._forget_reports(found)
        self.stored(life, blocks, now)

    def store_below(self, life: int, tier: str, blocks: Blocks, now: float) -> None:
        """The engine has these blocks in a tier below its device; without blocks it reaches a store. No-op for a life
        that ended, for an unknown tier, and for one store too many."""
        held = self._below.get(life, {}).get(tier) or self._join_tier(life, tier)
        if held is not None:
            self._advance(now)
            self._reported.store_blocks(held.bit, blocks, self._now)
            if self._reported.is_due:
                self._settle()

    def remove_below(self, life: int, tier: str, blocks: Blocks, now: float) -> None:
        """These blocks left one tier below the engine's device."""
        held = self._below.get(life, {}).get(tier)
        if held is not None:
            self._advance(now)
            self._reported.remove_blocks(held.bit, blocks, self._now)
            if self._reported.is_due:
                self._settle()

    def clear_below(self, life: int, tier: str) -> None:
        """Everything left one tier below the engine's device. A store with a name has what other engines put there."""
        if not tier.startswith(NAMED) and (held := self._below.get(life, {}).pop(tier, None)) is not None:
            self._retire(held)

    def count_below(self) -> dict[str, int]:
        """How many blocks the tiers below the devices hold, of all engines; a store's once."""
        self._settle()
        counts: dict[str, int] = {}
        for life, tiers in self._below.items():
            for tier, held in tiers.items():
                if life == SHARED or not tier.startswith(NAMED):
                    counts[tier] = counts.get(tier, 0) + self._reported.count_held(held.bit)
        return counts

    @property
    def has_reports(self) -> bool:
        """Whether engines report their blocks."""
        return self._reported.size > 0

    def held(self, life: int) -> int:
        """How many blocks a worker is believed to hold."""
        known = self._lives.get(life)
        if known is None:
            return 0
        self._settle()
        return self._reported.count_held(known.bit) + len(known.computed) + len(known.awaited)

    def bits(self) -> tuple[int, list[int]]:
        """How many bits were given out, and those that are free."""
        return self._masks.bits()

    def thawed(self, bits: int, free: list[int]) -> None:
        """Everything but the masks was set from a snapshot: fill them from the lives. Arguments as of
        `Masks.restart`."""
        self._masks.restart(bits, free)
        self._reported = ReportedBlocks(self._max_bytes)
        self._holdings = 0
        self._spare = -1  # not in logs of earlier versions
        for life in (*self._lives.values(), *self._retired):
            life.claims = Counter(life.claims)  # a plain dictionary in logs of earlier versions
            for blocks in (life.computed.held, life.awaited.held, life.claims):
                self._masks.hold(blocks, life.bit)
            self._holdings += len(life.computed) + len(life.awaited)
            self._thaw_reports(life)
        tiers = [held for each in self._below.values() for held in each.values()]
        for held in {held.bit: held for held in tiers}.values():
            self._thaw_reports(held)
        self._settle()
        for life in self._retired:
            self._reported.forget_engine(life.bit)
        self._lay_out()

    def _join_tier(self, life: int, tier: str) -> Life | None:
        if life not in self._lives or not is_tier(tier):
            return None
        shared = self._below.setdefault(SHARED, {}) if tier.startswith(NAMED) else {}
        held = shared.get(tier)
        if held is None:
            if len(shared) >= MOST_STORES and not self._drop_unreached_store(shared):
                return None
            held = self._follow(Life(self._masks.new_bit(), None))
            if tier.startswith(NAMED):
                shared[tier] = held
        self._below.setdefault(life, {})[tier] = held
        self._lay_out()
        return held

    def _drop_unreached_store(self, shared: dict[str, Life]) -> bool:
        """Forget a store that no worker reaches any more. False when there is none."""
        reached = {tier for life, tiers in self._below.items() if life != SHARED for tier in tiers}
        tier = next((tier for tier in shared if tier not in reached), None)
        if tier is not None:
            self._retire(shared.pop(tier))
        return tier is not None

    def _rank(self, table: Recency, life: Life) -> None:
        """Offer this table when memory is needed."""
        if not table.ranked and (oldest := table.oldest_at()) is not None:
            table.ranked = True
            self._ranks += 1
            heapq.heappush(self._ranking, (oldest, self._ranks, table, life))

    def _shed(self, life: Life) -> None:
        """Drop blocks that the worker's own cache can't have kept. The engine reports the rest itself."""
        over = 0 if life.capacity is None else len(life.computed.held) - life.capacity
        if over > 0:
            self._evicted_capacity += over
            self._drop(life, life.computed.take(over))

    def _drop(self, life: Life, blocks: Sequence[int]) -> None:
        """These blocks left one of the worker's tables: update the totals, and the masks where no other reason is
        left."""
        self._holdings -= len(blocks)
        if claims := life.claims:
            blocks = [block for block in blocks if block not in claims]
        self._let_go(life, blocks)

    def _let_go(self, life: Life, blocks: Sequence[int]) -> None:
        """Release those of the unclaimed blocks that the worker holds for no other reason."""
        self._masks.release(life.unpredicted(blocks), life.bit)

    def _end_predictions(self, life: Life, blocks: Blocks) -> None:
        """The engine itself told of these blocks."""
        for table in (life.awaited, life.computed):
            if held := table.held:
                hashes: list[int] = blocks.tolist()
                if not held.keys().isdisjoint(hashes):
                    self._drop(life, [block for block in dict.fromkeys(hashes) if table.discard(block)])
        if self._reported.is_due:
            self._settle()

    def _settle(self) -> None:
        """Take in the reports that wait."""
        if self._reported.waiting:
            self._reported.settle_reports()
            self._masks.forget_answer()
            self._make_room()

    def _forget_reports(self, life: Life) -> None:
        """Nothing that the engine reported so far counts any more. It gets another bit, so that this takes no longer
        for many blocks."""
        self._settle()
        former = Life(life.bit, None, stored=life.stored)
        life.stored = Reports()
        for table in (life.awaited, life.computed):
            blocks = [*table.held]
            if blocks:
                reported = self._reported.holder_masks(np.array(blocks, dtype=np.uint64))
                told = [block for block, mask in zip(blocks, reported, strict=True) if mask & life.bit]
                self._drop(life, [block for block in told if table.discard(block)])
        held = [*dict.fromkeys((*life.computed.held, *life.awaited.held, *life.claims))]
        self._masks.release(held, life.bit)
        life.bit = self._masks.new_bit()
        self._masks.hold(held, life.bit)
        self._follow(life)
        self._retire(former)

    def _thaw_reports(self, life: Life) -> None:
        table = cast("Recency", life.stored)
        entries = table.entries()
        table.restore([])  # it may stand in the ranking, too
        life.stored = Reports()
        self._follow(life)
        self._reported.load_blocks(
            life.bit,
            np.array([block for block, _ in entries], dtype=np.uint64),
            np.array([at for _, at in entries], dtype=np.float64),
        )

    def _make_room(self) -> None:
        """Drop from the table with the oldest use, a few blocks at a time, until everything fits."""
        reported = self._reported
        while (over := self._bytes() - self._max_bytes) > 0:
            if reported.size and not (self._ranking and self._ranking[0][0] <= (reported.oldest_at() or 0.0)):
                self._evicted_memory += reported.evict_oldest(over // REPORTED_BYTES + 1)
                self._masks.forget_answer()
                continue
            if not self._ranking:
                break
            ranked, _, table, life = heapq.heappop(self._ranking)
            oldest = table.oldest_at()
            if oldest is not None and oldest <= ranked:
                evicted = table.take(EVICTED_TOGETHER, until=oldest)
                self._drop(life, evicted)
                self._evicted_memory += len(evicted)
            # A rank dates from the last look at the table: later uses only made the table younger.
            table.ranked = False
            self._rank(table, life)
        self._spare = self._max_bytes - self._bytes()

    def _bytes(self) -> int:
        reported = self._reported
        return (
            BLOCK_BYTES * len(self._masks.held)
            + HOLDING_BYTES * (self._holdings + self._open_blocks)
            + REPORTED_BYTES * reported.size
            + REPORT_BYTES * reported.holdings
        )

    def _follow(self, life: Life) -> Life:
        self._reported.follow_engine(life.bit, life.stored)
        return life

    def _advance(self, now: float) -> None:
        if now > self._now:
            self._now = now
        if self._retired:
            self._drain(DRAIN_BUDGET)

    def _drain(self, budget: int) -> int:
        """Remove a former life from the masks, and free its bit when it holds no more blocks."""
        while self._retired and budget > 0:
            life = self._retired[-1]
            for table in (life.computed, life.awaited):
                if budget > 0 and table.held:
                    dropped = table.take_any(budget)
                    self._drop(life, dropped)
                    budget -= len(dropped)
            while budget > 0 and life.claims:
                self._let_go(life, (life.claims.popitem()[0],))
                budget -= 1
            if budget > 0:
                budget -= self._reported.release_blocks(life.bit, life.stored, budget)
            if budget > 0 and not life.stored.logged:
                self._retired.pop()
                self._masks.free_bit(life.bit)
        return budget

    def _retire(self, life: Life) -> None:
        self._reported.forget_engine(life.bit)
        self._retired.append(life)
        self._lay_out()

    def _lay_out(self) -> None:
        self._masks.lay_out([life.bit if (life := self._lives.get(row)) else 0 for row in self._rows])
        self.reach = list_reach(self._rows, self._below) if self._below else []
