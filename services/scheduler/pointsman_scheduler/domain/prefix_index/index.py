"""Which worker has computed which prompt prefix, as far as events and requests show."""

from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pointsman_delay.formula import new
from pointsman_plugins.scheduling.arrays import Blocks, Floats
from pointsman_scheduler.domain.prefix_index.below import match_below
from pointsman_scheduler.domain.prefix_index.holdings import DRAIN_BUDGET, Holdings
from pointsman_scheduler.domain.prefix_index.life import Dump, Life
from pointsman_scheduler.domain.prefix_index.memory import GROWTH, Memory

SWEPT_TOGETHER: Final = 512
"""Holdings that a sweep removes, in 0.4 to 0.7 ms; 1,024 took up to 1.4, and 4,096 took 10."""


class _Open(NamedTuple):
    life: int
    clearings: int
    blocks: list[int]
    at: float
    told: bool


class PrefixIndex(Holdings):
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
        super().__init__(max_bytes)
        self._ttl: Final = ttl
        self._told_ttl: Final = told_ttl
        self._claim_ttl: Final = claim_ttl
        self._open: dict[Hashable, _Open] = {}
        self._expired = self._abandoned = 0
        self._matched: Blocks | None = None
        self._hashes: list[int] = []
        """Those of `_matched`: what is matched is often written next."""

    def match(self, blocks: Blocks, block_tokens: int = 1, matched: Floats | None = None) -> Floats:
        """For each laid-out worker, how many leading blocks of the prompt it holds without a gap, times
        `block_tokens`. `matched`: an array of zeros to write it to."""
        if blocks is not self._matched:
            self._matched, self._hashes = blocks, blocks.tolist()
        reported = self._reported
        if reported.waiting:
            self._settle()
        if not reported.size:
            return self._masks.match(self._hashes, block_tokens, matched)
        return self._masks.match(self._hashes, block_tokens, matched, lambda: reported.holder_masks(blocks))

    def match_below(self, blocks: Blocks, block_tokens: int, matched: Floats) -> dict[str, Floats] | None:
        """How many tokens each laid-out worker would fetch from below its device, by tier: those of the blocks that
        follow the ones that `match` found, without a gap. None where no worker would."""
        if self._reported.waiting:
            self._settle()
        return match_below(self._reported.holder_masks(blocks), self.reach, block_tokens, matched)

    def find_reporters(self, block: int) -> set[int]:
        """The lives whose engines have reported that they hold this block, and nothing else since."""
        if self._reported.waiting:
            self._settle()
        (mask,) = self._reported.holder_masks(np.array([block], np.uint64))
        return {number for number, life in self._lives.items() if mask & life.bit}

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
        if matched and found.stored.logged:
            matched = 0  # it may have been reported, and may be gone before the claim is
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
        computed, awaited = life.computed, life.awaited
        if life.stored.logged:
            self._reported.use_blocks(life.bit, np.array(blocks, dtype=np.uint64), self._now)
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

    def add_answer(self, life: int, prompt: Sequence[int], answer: Sequence[int], now: float) -> None:
        """The worker has computed the answer to a prompt that it was sent: `answer` are the blocks that follow those of
        `prompt`. They are held as the prompt's. No-op for a life that ended."""
        found = self._lives.get(life)
        if found is None:
            return
        self._advance(now)
        # The end of a conversation is dropped before its beginning, as in the engine.
        blocks = [*dict.fromkeys((*prompt, *answer))]
        blocks.reverse()
        computed = found.computed
        before = len(computed.held)
        self._masks.hold(blocks, found.bit)
        computed.use(blocks, self._now)
        self._rank(computed, found)
        self._holdings += len(computed.held) - before
        self._shed(found)
        self._spare -= (len(computed.held) - before) * GROWTH
        if self._spare < 0:
            self._make_room()

    def sweep(self, now: float, budget: int = SWEPT_TOGETHER) -> bool:
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
                if budget > 0 and table.held and (used := table.oldest_at()) is not None and used + ttl <= self._now:
                    expired = table.take(budget, until=self._now - ttl)
                    self._drop(life, expired)
                    self._expired += len(expired)
                    budget -= len(expired)
        return self._drain(budget) <= 0

    def dump(self, life: int, now: float) -> Dump:
        """The known blocks of a worker, for a peer that joins. Requests on their way aren't part of it, since they are
        reservations; nor are blocks that the engine will report soon."""
        found = self._lives[life]
        self._advance(now)
        self._settle()
        reported, ats = self._reported.list_blocks(found.bit)
        computed = found.computed.entries()
        hashes = np.concatenate((np.array([block for block, _ in computed], dtype=np.uint64), reported))
        used = np.concatenate((np.array([at for _, at in computed], dtype=np.float64), ats))
        order = np.argsort(used, kind="stable")
        return Dump(hashes[order], self._now - used[order], order >= len(computed))

    def load(self, life: int, dump: Dump, now: float) -> None:
        """Take over a peer's dump of a worker. Blocks already known here stay as they are."""
        found = self._lives[life]
        self._advance(now)
        self._settle()
        hashes: list[int] = dump.hashes.tolist()
        reported = self._reported.holder_masks(dump.hashes)
        computed, awaited = found.computed, found.awaited
        fresh = np.array(
            [
                not mask & found.bit and block not in computed and block not in awaited
                for block, mask in zip(hashes, reported, strict=True)
            ],
            dtype=np.bool_,
        )
        ats = self._now - dump.ages
        self._reported.load_blocks(found.bit, dump.hashes[fresh & dump.stored], ats[fresh & dump.stored])
        rows = fresh & ~dump.stored
        predicted: list[int] = dump.hashes[rows].tolist()
        self._masks.hold(predicted, found.bit)
        self._holdings += len(predicted)
        computed.restore([*computed.entries(), *zip(predicted, ats[rows].tolist(), strict=True)])
        self._rank(computed, found)
        self._shed(found)
        self._settle()

    def memory(self) -> Memory:
        """Figures for metrics and for the bound."""
        self._settle()
        return Memory(
            blocks=len(self._masks.held) + self._reported.size,
            holdings=self._holdings + self._reported.holdings,
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
