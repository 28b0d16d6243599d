"""The tokens in each engine's KV cache that have a use: those of open requests, and prefixes that are kept for sessions
about to go on.

An engine evicts the prefix that was used least recently, whatever it is worth. Where more requests are sent than its
cache holds, each evicts a prefix whose session comes back a moment later and evicts the next one. So a request that
brings a new prefix waits until there is room for it, or goes to an engine that has room.

A session isn't known by name: a prompt that contains the last block of an earlier prompt goes on with it. Prompts share
beginnings: a conversation counts for what it doesn't share with the prompts that were there when it began.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_plugins.scheduling.worker import HoldKey
from pointsman_scheduler.domain.cache_room.return_times import EDGES_S, ReturnTimes

FILL: Final = 0.93
"""The share of a cache that may be taken: the beginnings that conversations share are counted once at most."""
LEAST_SHARE: Final = 1.0 / 256.0
"""A prompt that takes less of the cache than this counts, but isn't kept for its session."""
TIGHT: Final = 0.6
"""From this share on an engine is asked about for every request."""
_OUTPUT: Final = 500.0
_OUTPUT_GAIN: Final = 0.01
"""Expected tokens of an answer, a running mean."""
_KEPT: Final = 20_000
"""Prefixes that are remembered; the one that was used least recently is forgotten."""
_ENDED_AT_ONCE: Final = 100
_TOKEN_MS: Final = 0.02
"""For computing a prompt token, while the pool's pass model isn't trusted."""


class NewPrefix(NamedTuple):
    """A request's prompt, as an engine would have to hold it."""

    tokens: int
    continued: int | None
    """The last block of the earlier prompt that this one goes on with; None where none is known."""


class RoomNeeded(NamedTuple):
    """A request that was sent to an engine."""

    key: HoldKey
    life: int
    capacity: float
    """Tokens that the engine's cache has room for."""
    prompt: int
    uncached: int
    """Tokens of the prompt that the engine didn't hold."""
    flow: str


class KeptPrefix(Struct, eq=False):
    """The prompt of a turn that has ended, and its answer."""

    life: int
    own: float
    """Tokens that no other conversation shares."""
    shared: float
    ended_at: float | None
    """None once its next turn came."""
    until: float
    """Until then it counts as taken."""
    flow: str
    counted: bool = True
    outlasted: int = 0
    """Bins of `EDGES_S` that are over while its next turn is awaited."""


class _OpenTurn(Struct, eq=False):
    life: int
    own: float
    shared: float
    expected: float
    """Tokens of the answer that are counted."""
    flow: str


class EngineRoom(Struct, eq=False):
    """One life of an engine."""

    capacity: float
    requests: int = 0
    open: float = 0.0
    """Tokens of open requests."""
    kept: float = 0.0
    """Tokens of kept prefixes."""

    @property
    def taken(self) -> float:
        return self.open + self.kept


class CacheRoom:
    """One pool. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.returns = ReturnTimes()
        self.token_ms = _TOKEN_MS
        """For computing one prompt token, in a long prompt."""
        self._engines: dict[int, EngineRoom] = {}
        self._open: dict[HoldKey, _OpenTurn] = {}
        self._short: dict[HoldKey, tuple[int, float]] = {}
        """Open requests with short prompts: life of the engine, and the tokens that are counted."""
        self._kept: OrderedDict[int, KeptPrefix] = OrderedDict()
        """By the last block of the prompt."""
        self._awaited: list[deque[tuple[float, int]]] = [deque() for _ in EDGES_S]
        """For each bin, when a turn ended that may outlast it, and its last block; the earliest first."""
        self._expiry: list[tuple[float, int]] = []
        self._tight: set[int] = set()
        """Lives of engines of whose cache `TIGHT` is taken."""
        self._spare = float("inf")
        """Tokens for which an engine has room that isn't one of these."""
        self._output = _OUTPUT
        self._reserved: tuple[int, RequestKey, float] | None = None
        """The engine, by life, that gets no new prefix but that of one request, which has waited too long; and until
        when."""

    def may_lack(self, prompt_tokens: int) -> bool:
        """Whether an engine may have no room for such a prompt; a cheap question for every request."""
        return bool(self._tight) or prompt_tokens > self._spare

    def find_continued(self, blocks: Blocks) -> int | None:
        """The last block of the earlier prompt that this one goes on with; None where none is known."""
        kept = self._kept
        if kept:
            for block in reversed(blocks.tolist()):
                if block in kept:
                    return block
        return None

    def lives_without_room(
        self,
        request: RequestKey,
        prompt: NewPrefix,
        lives: Sequence[int],
        capacities: Sequence[float],
        matched: Sequence[float],
        now: float,
    ) -> list[int]:
        """Places in `lives` of the engines that would have to evict what is worth keeping. `matched`: prompt tokens
        that each holds; `capacities`: tokens that each has room for, 0 when unknown."""
        self._expire(now)
        kept = None if prompt.continued is None else self._kept.get(prompt.continued)
        reserved = self._reserved
        if reserved is not None and (reserved[1] == request or reserved[2] < now):
            reserved = None
        lacking: list[int] = []
        for place, (life, capacity) in enumerate(zip(lives, capacities, strict=True)):
            room = self._engines.get(life)
            if room is None or not capacity or not room.requests:
                continue
            room.capacity = capacity
            held = matched[place]
            own = prompt.tokens - (held if kept is None else min(kept.shared, held)) + self._output
            fits = room.open + own <= capacity
            if kept is None or kept.life != life or not kept.counted:
                # Tokens that the engine holds push nothing out.
                new = prompt.tokens - held + self._output
                fits = fits and room.taken + new <= FILL * capacity and (reserved is None or reserved[0] != life)
            if not fits:
                lacking.append(place)
        return lacking

    def reserve_engine(self, life: int, request: RequestKey, until: float) -> None:
        """Until then the engine gets no new prefix but that of this request."""
        self._reserved = life, request, until

    def taken_share(self, life: int) -> float:
        """The share of the engine's cache that is taken; more than 1 where it is overcommitted."""
        room = self._engines.get(life)
        return 0.0 if room is None or not room.capacity else room.taken / room.capacity

    def note_return(self, continued: int, now: float, keep_s: float = 0.0) -> None:
        """The next turn of a session came. `keep_s`: it waits, and its prefix stays for so long at most."""
        kept = self._kept.get(continued)
        if kept is None:
            return
        if kept.ended_at is not None:
            self.returns.learn_gap(kept.flow, max(0.0, now - kept.ended_at))
            self._await_no_more(kept)
        if keep_s and kept.counted:
            kept.until = now + keep_s
            heapq.heappush(self._expiry, (kept.until, continued))

    def count_short(self, request: HoldKey, life: int, capacity: int, uncached: int) -> None:
        """A request was sent to an engine that has room for `capacity` tokens. Its prompt takes less than
        `LEAST_SHARE` of that, or another engine answers: it counts only while it is open."""
        tokens = uncached + self._output
        self._short[request] = life, tokens
        self._open_request(life, capacity, tokens)

    def uncount_short(self, request: HoldKey, output: int | None) -> bool:
        """A request is off its engine. False where `count_short` didn't count it; `output` as in `give_room_back`."""
        short = self._short.pop(request, None)
        if short is None:
            return False
        life, tokens = short
        self._mark(life, self._close_request(life, tokens, output))
        return True

    def take_room(self, hold: "RoomNeeded", blocks: Blocks | None, now: float) -> None:
        """A request was sent to an engine. `blocks`: of its prompt, where it is long enough to be kept."""
        continued = None if blocks is None else self.find_continued(blocks)
        own = float(hold.uncached)
        if continued is not None:
            self.note_return(continued, now)
            kept = self._drop_kept(continued)
            if kept is not None:
                own = hold.prompt - min(kept.shared, float(hold.prompt - hold.uncached))
        turn = _OpenTurn(hold.life, own, hold.prompt - own, self._output, hold.flow)
        self._open[hold.key] = turn
        self._open_request(hold.life, hold.capacity, own + turn.expected)

    def give_room_back(self, request: HoldKey, now: float, last_block: int | None, output: int | None) -> None:
        """A request is off its engine. `last_block`: of its prompt, where the answer came and its session may go on;
        `output`: tokens of the answer, None when unknown."""
        turn = self._open.pop(request, None)
        if turn is None:
            return
        room = self._close_request(turn.life, turn.own + turn.expected, output)
        if last_block is not None and turn.own + turn.shared >= LEAST_SHARE * room.capacity:
            self._count_outlasted(now)
            value_s = room.capacity * self.token_ms / 1000.0
            until = now + self.returns.worth_keeping_s(turn.flow, value_s)
            own = turn.own + (turn.expected if output is None else output)
            self._drop_kept(last_block)
            self._kept[last_block] = KeptPrefix(
                life=turn.life, own=own, shared=turn.shared, ended_at=now, until=until, flow=turn.flow
            )
            room.kept += own
            self._awaited[0].append((now, last_block))
            heapq.heappush(self._expiry, (until, last_block))
            self._bound_memory()
        self._mark(turn.life, room)

    def find_kept_for_s(self, last_block: int) -> float | None:
        """How long the prefix that ends with this block is worth its place, from the end of its turn on; None where
        none is kept, or its next turn came."""
        kept = self._kept.get(last_block)
        return None if kept is None or kept.ended_at is None else kept.until - kept.ended_at

    def sweep_room(self, lives: Collection[int], now: float) -> None:
        """Forget engines that are gone, and sessions that haven't come back for so long that they are over: at most a
        hundred of these. `lives`: of the engines that are here."""
        gone = [life for life, room in self._engines.items() if life not in lives and not room.requests]
        if gone:
            for life in gone:
                del self._engines[life]
                self._tight.discard(life)
            for block in [block for block, kept in self._kept.items() if kept.life not in self._engines]:
                self._await_no_more(self._kept.pop(block))
        for _ in range(_ENDED_AT_ONCE):
            block = next(iter(self._kept), None)
            if block is None or now - (self._kept[block].ended_at or 0.0) <= EDGES_S[-1]:
                return
            self._count_as_over(block)

    def _open_request(self, life: int, capacity: float, tokens: float) -> None:
        room = self._engines.get(life)
        if room is None:
            room = self._engines[life] = EngineRoom(capacity)
            self._spare = min(self._spare, (FILL - TIGHT) * capacity - self._output)
        room.capacity = capacity
        room.requests += 1
        room.open += tokens
        self._mark(life, room)

    def _close_request(self, life: int, tokens: float, output: int | None) -> EngineRoom:
        room = self._engines[life]
        room.requests -= 1
        room.open = room.open - tokens if room.requests else 0.0
        if output is not None:
            self._output += _OUTPUT_GAIN * (output - self._output)
        return room

    def _expire(self, now: float) -> None:
        expiry = self._expiry
        while expiry and expiry[0][0] <= now:
            _, block = heapq.heappop(expiry)
            kept = self._kept.get(block)
            if kept is not None and kept.counted and kept.until <= now:
                self._uncount(kept)

    def _uncount(self, kept: KeptPrefix) -> None:
        kept.counted = False
        room = self._engines.get(kept.life)
        if room is not None:
            room.kept = max(0.0, room.kept - kept.own)
            self._mark(kept.life, room)

    def _drop_kept(self, block: int) -> KeptPrefix | None:
        kept = self._kept.pop(block, None)
        if kept is not None and kept.counted:
            self._uncount(kept)
        if kept is not None:
            self._await_no_more(kept)
        return kept

    def _count_outlasted(self, now: float) -> None:
        """Note which sessions haven't come back by the end of another bin."""
        for place, (edge, awaited) in enumerate(zip(EDGES_S, self._awaited, strict=True)):
            while awaited and awaited[0][0] + edge <= now:
                ended_at, block = awaited.popleft()
                kept = self._kept.get(block)
                if kept is not None and kept.ended_at == ended_at and kept.outlasted == place:
                    kept.outlasted = place + 1
                    self.returns.note_outlasted(kept.flow, place)
                    if place + 1 < len(EDGES_S):
                        self._awaited[place + 1].append((ended_at, block))

    def _await_no_more(self, kept: KeptPrefix) -> None:
        self.returns.forget_awaited(kept.flow, kept.outlasted)
        kept.ended_at, kept.outlasted = None, 0

    def _bound_memory(self) -> None:
        while len(self._kept) > _KEPT:
            block = next(iter(self._kept))
            self._count_as_over(block)
        if len(self._expiry) > 4 * _KEPT:
            self._expiry = [(kept.until, block) for block, kept in self._kept.items() if kept.counted]
            heapq.heapify(self._expiry)

    def _count_as_over(self, block: int) -> None:
        kept = self._kept[block]
        if kept.ended_at is not None:
            self.returns.learn_gap(kept.flow, float("inf"))
        self._drop_kept(block)

    def _mark(self, life: int, room: EngineRoom) -> None:
        if room.capacity and room.open + room.kept > TIGHT * room.capacity:
            self._tight.add(life)
        elif self._tight:
            self._tight.discard(life)
