"""Which worker has computed which prompt prefix, as far as events and requests show."""

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from pointsman_delay.formula import new
from pointsman_plugins.scheduling.arrays import Blocks, Floats
from pointsman_scheduler.domain.prefix_index.life import Dump, Life, Masks
from pointsman_scheduler.domain.prefix_index.memory import BLOCK_BYTES, GROWTH, HOLDING_BYTES, Memory
from pointsman_scheduler.domain.prefix_index.recency import Recency

EVICTED_TOGETHER: Final = 16
TOLD_TICK_S: Final = 0.25
DRAIN_BUDGET: Final = 512
"""Holdings of a former life that one call removes besides its own work."""


class _Open(NamedTuple):
    life: int
    clearings: int
    blocks: list[int]
    at: float
    told: bool


class PrefixIndex:
    """Prefix blocks of the workers of one pool.

    A block is known by its 64-bit hash, which already covers everything before it and the salt of model, adapter and
    tenant. A worker holds a block for one of three reasons: the engine reported it (`stored`, until `removed`), a
    request with it was answered (`confirm`, until it is the least recently used beyond the worker's capacity or unused
    for `ttl`; for `told_ttl` where the engine will report it), or a request with it is on its way there (`write`, until
    its `confirm` or `retract`).

    A worker is known by its life: the number that `join` gave. A restarted engine joins again.
    Times are seconds of one monotonic clock. `max_bytes` bounds the estimated size; when it is reached, the holding
    that was least recently used is dropped, of any worker; claims of requests on their way are kept.
    """

    def __init__(
        self,
        max_bytes: int = 512 * 2**20,
        ttl: float = 1800.0,
        told_ttl: float = 2.0,
        claim_ttl: float = 1200.0,
    ) -> None:
        """`told_ttl` is long enough for the event of an answered request to arrive. After `claim_ttl`, an unsettled
        request is retracted."""
        self._ttl: Final = ttl
        self._told_ttl: Final = told_ttl
        self._claim_ttl: Final = claim_ttl
        self._max_bytes: Final = max_bytes
        self._spare = 0
        """Bytes that are free at least: the size is computed only when blocks may have used them up."""
        self._now = 0.0
        self._masks = Masks()
        self._lives: dict[int, Life] = {}
        self._next_life = 1
        self._rows: list[int] = []
        self._retired: list[Life] = []
        self._holdings = 0
        self._open: dict[Hashable, _Open] = {}
        self._open_blocks = 0
        self._ranking: list[tuple[float, int, Recency, Life]] = []
        """A heap of the tables that hold something, each once, by when its oldest block was used or earlier."""
        self._ranks = 0
        self._evicted_capacity = self._evicted_memory = self._expired = self._abandoned = 0
        self._matched: Blocks | None = None
        self._hashes: list[int] = []
        """Those of `_matched`: what is matched is often written next."""

    def join(self, kv_blocks: int | None = None) -> int:
        """Start a life of a worker. Returns its number. `kv_blocks`: how many blocks of the index its cache has room
        for; None when unknown."""
        life = self._next_life
        self._next_life += 1
        self._lives[life] = Life(self._masks.new_bit(), kv_blocks)
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
        if ended is not None:
            self._retire(ended)

    def cleared(self, life: int) -> None:
        """The engine dropped its whole cache. Claims of requests on their way are dropped too: the engine will report
        their blocks."""
        found = self._lives.get(life)
        if found is None:
            return
        self._lives[life] = Life(self._masks.new_bit(), found.capacity, clearings=found.clearings + 1)
        self._retire(found)

    def match(self, blocks: Blocks, block_tokens: int = 1, matched: Floats | None = None) -> Floats:
        """For each laid-out worker, how many leading blocks of the prompt it holds without a gap, times
        `block_tokens`. `matched`: an array of zeros to write it to."""
        if blocks is not self._matched:
            self._matched, self._hashes = blocks, blocks.tolist()
        return self._masks.match(self._hashes, block_tokens, matched)

    def write(
        self, life: int, blocks: Blocks, now: float, request: Hashable, told: bool = False, matched: int = 0
    ) -> None:
        """A request with this prompt was sent to the worker: count on its having the blocks until `confirm` or
        `retract`. `told`: its engine reports blocks by these hashes. `matched`: how many of the first blocks the worker
        holds, as `match` has just said; 0 is always right. Idempotent; a request that went elsewhere before is taken
        back there."""
        found = self._lives.get(life)
        earlier = self._open.get(request)
        if earlier is not None:
            if found is not None and earlier.life == life and earlier.clearings == found.clearings:
                return
            self.retract(request, now)
            matched = 0
        if found is None:
            return
        if now > self._now:
            self._now = now
        if self._retired:
            self._drain(DRAIN_BUDGET)
        hashes: list[int] = self._hashes if blocks is self._matched else blocks.tolist()
        self._matched = None  # the open request keeps the list
        once = dict.fromkeys(hashes, 1)
        length = len(once)
        if length < len(hashes):  # a valid chain has each hash once
            hashes = list(once)
            matched = 0
        found.claim(once)
        if matched < length:
            self._masks.hold(hashes[matched:] if matched else hashes, found.bit)
        self._open[request] = new(_Open, (life, found.clearings, hashes, self._now, told))
        self._open_blocks += length
        self._spare = spare = self._spare - length * GROWTH
        if spare < 0:
            self._make_room()

    def confirm(self, request: Hashable, now: float) -> None:
        """The first byte of the answer came: the worker has the whole prompt. No-op for a request that isn't open."""
        sent = self._open.pop(request, None)
        if sent is None:
            return
        # As `_settled`, whose call costs a tenth of this method.
        number, clearings, blocks, _, told = sent
        self._open_blocks -= len(blocks)
        life = self._lives.get(number)
        if life is None or life.clearings != clearings:
            return
        if now > self._now:
            self._now = now
        if self._retired:
            self._drain(DRAIN_BUDGET)
        life.unclaim(blocks)
        # From the end, so that the end of a prompt is dropped before its beginning, as in the engine.
        blocks.reverse()
        # Its claim has held its place in the masks.
        stored, computed, awaited = life.stored, life.computed, life.awaited
        if held := stored.held:
            stored.use([block for block in blocks if block in held], self._now)
            self._rank(stored, life)
            blocks = [block for block in blocks if block not in held]
        if told and (held := computed.held):
            computed.use([block for block in blocks if block in held], self._now)
            self._rank(computed, life)
            blocks = [block for block in blocks if block not in held]
        elif awaited.held and not told:
            self._holdings -= sum(awaited.discard(block) for block in blocks)
        table = awaited if told else computed
        held = table.held
        before = len(held)
        table.use(blocks, self._now)
        if not table.ranked:
            self._rank(table, life)
        self._holdings += len(held) - before
        capacity = life.capacity
        if capacity is not None and len(computed.held) > capacity:
            self._shed(life)
        # Claimed blocks can be dropped from now on: the worker holds them.
        if self._spare < 0:
            self._make_room()

    def retract(self, request: Hashable, now: float) -> None:
        """The request didn't reach the worker: drop the blocks that it alone claimed. Blocks that the worker holds for
        another reason stay. No-op for a request that isn't open."""
        sent = self._open.pop(request, None)
        if sent is not None and (life := self._settled(sent, now)) is not None:
            self._let_go(life, life.unclaim(sent.blocks))
            if self._spare < 0:
                self._make_room()

    def stored(self, life: int, blocks: Blocks, now: float) -> None:
        """The engine has these blocks. No-op for a life that ended."""
        found = self._lives.get(life)
        if found is None:
            return
        self._advance(now)
        hashes: list[int] = list(dict.fromkeys(blocks[::-1].tolist()))
        for block in hashes:
            if block in found.stored or found.computed.discard(block) or found.awaited.discard(block):
                continue
            self._holdings += 1
        self._masks.hold(hashes, found.bit)
        # Single blocks are reported as they fill up: coarse times let them share runs.
        found.stored.use(hashes, math.floor(self._now / TOLD_TICK_S) * TOLD_TICK_S)
        self._rank(found.stored, found)
        self._spare -= len(hashes) * GROWTH
        if self._spare < 0:
            self._make_room()

    def removed(self, life: int, blocks: Blocks, now: float) -> None:
        """The engine dropped these blocks. Requests on their way there will compute them again, so blocks that
        they claim stay. No-op for a life that ended."""
        found = self._lives.get(life)
        if found is None:
            return
        self._advance(now)
        for block in blocks.tolist():
            if found.stored.discard(block) or found.computed.discard(block) or found.awaited.discard(block):
                self._drop(found, block)

    def retold(self, life: int, blocks: Blocks, now: float) -> None:
        """The engine has these blocks and no others: its earlier reports are void. Predictions stay. No-op for a life
        that ended."""
        found = self._lives.get(life)
        if found is None:
            return
        kept: set[int] = set(blocks.tolist())
        for block, _ in found.stored.entries():
            if block not in kept and found.stored.discard(block):
                self._drop(found, block)
        self.stored(life, blocks, now)

    def sweep(self, now: float, budget: int = 4096) -> bool:
        """Drop expired blocks and remains of former lives: at most `budget` holdings and as many abandoned requests.
        Call it about once a second. Returns True when more is left."""
        self._advance(now)
        for _ in range(budget):
            oldest = next(iter(self._open.items()), None)
            if oldest is None or oldest[1].at + self._claim_ttl > self._now:
                break
            self._abandoned += 1
            self.retract(oldest[0], now)
        for life in self._lives.values():
            for table, ttl in ((life.computed, self._ttl), (life.awaited, self._told_ttl)):
                while budget > 0 and (used := table.oldest_at()) is not None and used + ttl <= self._now:
                    self._drop(life, table.pop())
                    self._expired += 1
                    budget -= 1
        return self._drain(budget) <= 0

    def dump(self, life: int, now: float) -> Dump:
        """The known blocks of a worker, for a peer that joins."""
        found = self._lives[life]
        self._advance(now)
        return found.dump(self._now)

    def load(self, life: int, dump: Dump, now: float) -> None:
        """Take over a peer's dump of a worker. Blocks already known here stay as they are."""
        found = self._lives[life]
        self._advance(now)
        known = {True: found.stored.entries(), False: found.computed.entries()}
        for block, age, stored in zip(dump.hashes.tolist(), dump.ages.tolist(), dump.stored.tolist(), strict=True):
            if block not in found.stored and block not in found.computed and block not in found.awaited:
                known[stored].append((block, self._now - age))
                self._masks.hold((block,), found.bit)
                self._holdings += 1
        for stored, table in ((True, found.stored), (False, found.computed)):
            table.restore(known[stored])
            self._rank(table, found)
        self._shed(found)
        self._make_room()

    def held(self, life: int) -> int:
        """How many blocks a worker is believed to hold."""
        known = self._lives.get(life)
        return 0 if known is None else len(known.stored) + len(known.computed) + len(known.awaited)

    def bits(self) -> tuple[int, list[int]]:
        """How many bits were given out, and those that are free."""
        return self._masks.bits()

    def thawed(self, bits: int, free: list[int]) -> None:
        """Everything but the masks was set from a snapshot: fill them from the lives. Arguments as of
        `Masks.restart`."""
        self._masks.restart(bits, free)
        self._spare = -1  # not in logs of earlier versions
        for life in (*self._lives.values(), *self._retired):
            life.claims = Counter(life.claims)  # a plain dictionary in logs of earlier versions
            for blocks in (life.stored.held, life.computed.held, life.awaited.held, life.claims):
                self._masks.hold(blocks, life.bit)
        self._lay_out()

    def memory(self) -> Memory:
        """Figures for metrics and for the bound."""
        return Memory(
            blocks=len(self._masks.held),
            holdings=self._holdings,
            open_requests=len(self._open),
            bytes=self._bytes(),
            limit=self._max_bytes,
            evicted_capacity=self._evicted_capacity,
            evicted_memory=self._evicted_memory,
            expired=self._expired,
            abandoned=self._abandoned,
        )

    def _settled(self, sent: _Open, now: float) -> Life | None:
        """End a request's way. Returns its worker's life, where its blocks are still claimed; None when that ended."""
        number, clearings, blocks, *_ = sent
        self._open_blocks -= len(blocks)
        life = self._lives.get(number)
        if life is None or life.clearings != clearings:
            return None
        self._advance(now)
        return life

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
            dropped = life.computed.take(over)
            self._holdings -= over
            self._evicted_capacity += over
            self._let_go(life, [block for block in dropped if block not in life.claims])

    def _drop(self, life: Life, block: int) -> None:
        """A block left one of the worker's tables: update the totals, and the mask if no other reason is left."""
        self._holdings -= 1
        if block not in life.claims:
            self._let_go(life, (block,))

    def _let_go(self, life: Life, blocks: Sequence[int]) -> None:
        """Release those of the unclaimed blocks that the worker holds for no other reason."""
        self._masks.release(life.unheld(blocks), life.bit)

    def _make_room(self) -> None:
        """Drop from the table with the oldest use, a few blocks at a time, until everything fits."""
        while self._ranking and self._bytes() > self._max_bytes:
            ranked, _, table, life = heapq.heappop(self._ranking)
            oldest = table.oldest_at()
            if oldest is not None and oldest <= ranked:
                for _ in range(min(EVICTED_TOGETHER, len(table))):
                    self._drop(life, table.pop())
                    self._evicted_memory += 1
            # A rank dates from the last look at the table: later uses only made the table younger.
            table.ranked = False
            self._rank(table, life)
        self._spare = self._max_bytes - self._bytes()

    def _bytes(self) -> int:
        return BLOCK_BYTES * len(self._masks.held) + HOLDING_BYTES * (self._holdings + self._open_blocks)

    def _advance(self, now: float) -> None:
        if now > self._now:
            self._now = now
        if self._retired:
            self._drain(DRAIN_BUDGET)

    def _drain(self, budget: int) -> int:
        """Remove a former life from the masks, and free its bit when it holds no more blocks."""
        while self._retired and budget > 0:
            life = self._retired[-1]
            for table in (life.stored, life.computed, life.awaited):
                while budget > 0 and len(table):
                    self._drop(life, table.pop_any())
                    budget -= 1
            while budget > 0 and life.claims:
                self._let_go(life, (life.claims.popitem()[0],))
                budget -= 1
            if budget > 0:
                self._retired.pop()
                self._masks.free_bit(life.bit)
        return budget

    def _retire(self, life: Life) -> None:
        self._retired.append(life)
        self._lay_out()

    def _lay_out(self) -> None:
        self._masks.lay_out([life.bit if (life := self._lives.get(row)) else 0 for row in self._rows])
