"""Preprocessors that are stopped, killed and started at any moment, with clocks that differ: a shard has one keeper."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pointsman_contracts.limits import LimitAsk, LimitKept, LimitShard, LimitWindow
from pointsman_limits.domain.limits.keeping import Keeping
from pointsman_limits.domain.limits.lease import LEASE_S, TAKEN_S
from pointsman_limits.keepers.keeper_questions import ASKED_S

BEGAN: Final = 1_000_000.0
SHARDS: Final = 2
TICK_S: Final = 0.1
MOST: Final = 20
WINDOWS: Final = (
    LimitWindow(unit="requests", amount=MOST, period_s=1e9, burst=MOST),
    LimitWindow(unit="tokens", amount=MOST, period_s=1e9),
    LimitWindow(unit="concurrency", amount=MOST),
)


@dataclass(frozen=True)
class _Ask:
    """One preprocessor asks another one whether a request may go on."""

    sender: str
    asked_at: float
    ask: LimitAsk


@dataclass(frozen=True)
class _Verdict:
    """The answer: admitted."""

    to: str
    asked_at: float
    ask: LimitAsk


@dataclass(frozen=True)
class _Wish:
    shard: int
    sender: str


@dataclass(frozen=True)
class _Given:
    state: LimitShard
    giver: str
    to: str


_Words = LimitKept | LimitKept | _Ask | _Verdict | _Wish | _Given | LimitShard


@dataclass
class _Node:
    """A preprocessor."""

    name: str
    clock: float
    """Its clock, less the true time."""
    keeping: Keeping
    saved: dict[int, LimitShard] = field(default_factory=dict[int, LimitShard])
    stopped: bool = False
    connection: int = 0
    inbound: deque[_Words] = field(default_factory=deque[_Words])
    written: deque[tuple[float, str, _Words]] = field(default_factory=deque[tuple[float, str, _Words]])
    """On its way to the server: time of sending, recipient (empty: all), message."""
    said_at: float = 0.0


class Preprocessors(RuleBasedStateMachine):
    """Each rule is one thing that may happen, whenever. The bus keeps the order of what each process writes, and has it
    within the time between the end of a lease and the next claim; what it hands out is read whenever."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGAN
        self.nodes: dict[str, _Node] = {}
        self.saved: dict[int, LimitShard] = {}
        self.admitted: list[set[str]] = [set() for _ in range(SHARDS)]
        self.counted: list[dict[tuple[int, str], float]] = [{} for _ in range(SHARDS)]
        """When each grant was counted, by its number and request."""
        self.numbers = 0

    @initialize(clocks=st.lists(st.sampled_from((0.0, 0.3, -0.3, 3600.0, -3600.0)), min_size=2, max_size=3))
    def begin(self, clocks: list[float]) -> None:
        for clock in clocks:
            self._start(clock)
        for _ in range(12):
            self._pass(TICK_S)

    @rule(seconds=st.sampled_from((0.01, 0.05, 0.1, 0.1, 0.1, 0.2)), late=st.sets(st.integers(0, 3), max_size=2))
    def time_passes(self, seconds: float, late: set[int]) -> None:
        self._pass(seconds, late)

    @rule(late=st.sets(st.integers(0, 3), max_size=2))
    def a_keeper_would_be_taken_for_dead(self, late: set[int]) -> None:
        for _ in range(8):
            self._pass(TICK_S, late)

    @rule(count=st.integers(1, MOST), shard=st.integers(0, SHARDS - 1))
    def requests_come(self, count: int, shard: int) -> None:
        """To all that run: each asks the keeper, by its own lights."""
        for node in list(self.nodes.values()):
            if node.stopped:
                continue
            holder = node.keeping.leases.other_holder(shard, self.now + node.clock)
            for _ in range(count):
                self.numbers += 1
                if holder:
                    self._write(node, holder, _Ask(node.name, self.now, self._ask(shard)))
                else:
                    self._admit(node, self._ask(shard))

    @rule(which=st.integers(0, 3), shard=st.integers(0, SHARDS - 1))
    def one_wants_a_shard(self, which: int, shard: int) -> None:
        node = self._running(which)
        if node is not None:
            self._seek(node, shard)

    @rule(which=st.integers(0, 3), keeper_of=st.integers(0, SHARDS))
    def one_is_stopped(self, which: int, keeper_of: int) -> None:
        self._one(which, keeper_of).stopped = True

    @rule(which=st.integers(0, 3))
    def one_goes_on(self, which: int) -> None:
        node = list(self.nodes.values())[which % len(self.nodes)]
        node.stopped = False
        self._turn(node)

    @rule(which=st.integers(0, 3))
    def one_connects_again(self, which: int) -> None:
        node = self._running(which)
        if node is not None and self._witness(without=node):
            node.connection += 1
            node.inbound.clear()
            for _ in range(4):
                self._pass(TICK_S)

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(which=st.integers(0, 3), keeper_of=st.integers(0, SHARDS))
    def one_is_killed(self, which: int, keeper_of: int) -> None:
        node = self._one(which, keeper_of)
        if self._witness(without=node):
            while node.written:
                self._arrives(node)
            del self.nodes[node.name]

    @precondition(lambda self: len(self.nodes) < 4 and self._witness())
    @rule(clock=st.sampled_from((0.0, 0.3, -0.3, 3600.0, -3600.0)))
    def one_starts(self, clock: float) -> None:
        self._start(clock)
        # One that joins gets the unsaved counts, unless all that know them are stopped at this moment.
        for _ in range(4):
            self._pass(TICK_S)

    @rule(which=st.integers(0, 3), shard=st.integers(0, SHARDS - 1))
    def one_saves(self, which: int, shard: int) -> None:
        node = self._running(which)
        if node is not None:
            self._save(node, shard)

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        assert all(len(admitted) <= MOST for admitted in self.admitted)

    @invariant()
    def a_shard_has_one_keeper(self) -> None:
        for shard in range(SHARDS):
            holders = [
                node.name
                for node in self.nodes.values()
                if node.keeping.leases.holds_shard(shard, self.now + node.clock)
            ]
            assert len(holders) <= 1, holders

    def _start(self, clock: float) -> None:
        self.numbers += 1
        name = f"p{self.numbers}"
        self.nodes[name] = _Node(name, clock, Keeping(name, name), dict(self.saved))

    def _running(self, which: int) -> _Node | None:
        node = list(self.nodes.values())[which % len(self.nodes)]
        return None if node.stopped else node

    def _one(self, which: int, keeper_of: int) -> _Node:
        """The keeper of a shard, or any."""
        for node in self.nodes.values():
            if keeper_of < SHARDS and node.keeping.leases.holds_shard(keeper_of, self.now + node.clock):
                return node
        return list(self.nodes.values())[which % len(self.nodes)]

    def _ask(self, shard: int) -> LimitAsk:
        return LimitAsk(
            edge="e", request_id=f"r{self.numbers}", limit="l", shard=shard, windows=WINDOWS, until_ms=0, open_s=1e9
        )

    def _witness(self, without: _Node | None = None) -> bool:
        """Whether each grant that isn't saved was heard by one that runs, and isn't in one process alone."""
        for shard in range(SHARDS):
            saved = self.saved.get(shard)
            unsaved = [at for (number, _), at in self.counted[shard].items() if not saved or number > saved.granted]
            if unsaved and not any(
                node is not without
                and not node.stopped
                and node.keeping.leases.listening_since - node.clock < min(unsaved)
                for node in self.nodes.values()
            ):
                return False
        return True

    def _pass(self, seconds: float, late: set[int] | None = None) -> None:
        self.now += seconds
        for node in list(self.nodes.values()):
            while node.written and node.written[0][0] <= self.now - (TAKEN_S - LEASE_S) + seconds:
                self._arrives(node)
        for place, node in enumerate(list(self.nodes.values())):
            if not node.stopped and place not in (late or ()):
                self._turn(node)

    def _turn(self, node: _Node) -> None:
        """Of its event loop: read what has come, then look around."""
        clock = self.now + node.clock
        while node.inbound:
            self._read(node, node.inbound.popleft(), clock)
        if clock - node.said_at >= TICK_S - 1e-6 or node.keeping.leases.unproved:
            node.said_at = clock
            if node.keeping.has_unpublished:
                self._write(node, "", node.keeping.take_unpublished(clock))
            self._write(node, "", node.keeping.make_report(clock, node.connection))
        for shard in range(SHARDS):
            if node.keeping.leases.holds_shard(shard, clock):
                self._book(node, shard)
            if node.keeping.leases.epoch_of(shard) == 0 and not node.keeping.leases.other_holder(shard, clock):
                self._seek(node, shard)

    def _read(self, node: _Node, words: _Words, clock: float) -> None:
        keeping = node.keeping
        if isinstance(words, LimitKept | LimitKept):
            keeping.receive_report(words, clock)
        elif isinstance(words, LimitShard):
            node.saved[words.shard] = words
        elif isinstance(words, _Wish):
            state = keeping.hand_over_shard(words.shard, words.sender, clock)
            if state is not None:
                self._write(node, words.sender, _Given(state, node.name, words.sender))
        elif isinstance(words, _Given):
            keeping.accept_handover(words.state, words.giver, clock)
        elif isinstance(words, _Ask):
            self._admit(node, words.ask, words)
        elif self.now - words.asked_at <= ASKED_S:
            self.admitted[words.ask.shard].add(words.ask.request_id)

    def _book(self, node: _Node, shard: int):
        book = node.keeping.books.get(shard)
        if book is None:
            book, _ = node.keeping.take_book(shard, node.saved.get(shard), self.now + node.clock)
        return book

    def _admit(self, node: _Node, ask: LimitAsk, asked: _Ask | None = None) -> None:
        clock, shard = self.now + node.clock, ask.shard
        if not node.keeping.leases.holds_shard(shard, clock):
            return
        book = self._book(node, shard)
        if node.keeping.count_request(book, ask, clock).outcome == "admitted":
            self.counted[shard][book.granted, ask.request_id] = self.now
            self._write(node, "", node.keeping.take_unpublished(clock))
            if asked is None:
                self.admitted[shard].add(ask.request_id)
            else:
                self._write(node, asked.sender, _Verdict(asked.sender, asked.asked_at, ask))

    def _seek(self, node: _Node, shard: int) -> None:
        clock = self.now + node.clock
        holder = node.keeping.leases.other_holder(shard, clock)
        if holder:
            self._write(node, holder, _Wish(shard, node.name))
            return
        saved = node.saved.get(shard)
        node.keeping.leases.claim_shard(shard, clock, saved.epoch if saved else 0)

    def _save(self, node: _Node, shard: int) -> None:
        book, saved = node.keeping.books.get(shard), self.saved.get(shard)
        if book is None or (saved and saved.epoch > node.keeping.leases.epoch_of(shard)):
            return
        state = book.build_snapshot(node.name, self.now + node.clock, node.keeping.leases.epoch_of(shard))
        self.saved[shard] = LimitShard.decode(state.encode())
        for each in self.nodes.values():
            each.inbound.append(self.saved[shard])

    def _write(self, node: _Node, to: str, words: _Words) -> None:
        node.written.append((self.now, to, words))

    def _arrives(self, node: _Node) -> None:
        """The server has what was written first, and hands it on."""
        _, to, words = node.written.popleft()
        for each in self.nodes.values():
            if to in ("", each.name):
                each.inbound.append(words)


def test_no_schedule_of_stops_kills_starts_and_clocks_lets_more_through_than_the_limit() -> None:
    run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType] - untyped in hypothesis
        Preprocessors, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
    )
