"""The prefix index does what a naive model of it does."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from pointsman_scheduler.domain.prefix_index import PrefixIndex

TTL, TOLD_TTL, CLAIM_TTL = 20.0, 2.0, 30.0


@dataclass
class Life:
    capacity: int | None
    stored: dict[int, float] = field(default_factory=dict[int, float])
    computed: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Least recently used first."""
    awaited: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """The same, where the engine is about to tell."""
    on_their_way: dict[str, tuple[list[int], bool]] = field(default_factory=dict[str, tuple[list[int], bool]])

    def has(self, block: int) -> bool:
        claimed = any(block in blocks for blocks, _ in self.on_their_way.values())
        return claimed or block in self.stored or block in dict(self.computed) or block in dict(self.awaited)

    def compute(self, blocks: Iterable[int], now: float, told: bool) -> None:
        for block in blocks:
            if told and block not in dict(self.computed):
                self.awaited = [*without(self.awaited, [block]), (block, now)]
            else:
                self.awaited = without(self.awaited, [block])
                self.computed = [*without(self.computed, [block]), (block, now)]
        if self.capacity is not None:
            self.computed = self.computed[max(0, len(self.computed) - self.capacity) :]


def without(table: list[tuple[int, float]], blocks: list[int]) -> list[tuple[int, float]]:
    return [(block, at) for block, at in table if block not in blocks]


def array(blocks: list[int]) -> NDArray[np.uint64]:
    return np.array(blocks, dtype=np.uint64)


# Prompts share beginnings as conversations do: a family, then where the prompt leaves it.
def _prompt(family: int, length: int, fork: int) -> list[int]:
    return [family * 1000 + i + (500 if i >= fork else 0) for i in range(1, length + 1)]


PROMPTS = st.builds(_prompt, st.integers(1, 3), st.integers(0, 8), st.integers(1, 9))
IDS = st.sampled_from([f"r{i}" for i in range(6)])


class Agreement(RuleBasedStateMachine):
    """Drives the index and the model with the same events."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(ttl=TTL, told_ttl=TOLD_TTL, claim_ttl=CLAIM_TTL)
        self.lives: dict[int, Life] = {}
        self.written: dict[str, float] = {}
        self.now = 100.0
        self.prompts = [
            (prompt, array(prompt)) for prompt in (_prompt(f, 8, fork) for f in (1, 2, 3) for fork in (1, 5, 9))
        ]

    def some(self, choice: int) -> int:
        return sorted(self.lives)[choice % len(self.lives)]

    @rule(capacity=st.none() | st.integers(1, 12))
    def join(self, capacity: int | None) -> None:
        self.lives[self.index.join(capacity)] = Life(capacity)
        self.index.lay_out(sorted(self.lives))

    @precondition(lambda self: self.lives)
    @rule(choice=st.integers(0, 9))
    def forget(self, choice: int) -> None:
        life = self.some(choice)
        del self.lives[life]
        self.index.forget(life)
        self.index.lay_out(sorted(self.lives))

    @precondition(lambda self: self.lives)
    @rule(choice=st.integers(0, 9))
    def cleared(self, choice: int) -> None:
        life = self.some(choice)
        self.lives[life] = Life(self.lives[life].capacity)
        self.index.cleared(life)

    @precondition(lambda self: self.lives)
    @rule(choice=st.integers(0, 9), prompt=PROMPTS, request=IDS, told=st.booleans())
    def write(self, choice: int, prompt: list[int], request: str, told: bool) -> None:
        life = self.some(choice)
        if request not in self.lives[life].on_their_way:
            for other in self.lives.values():
                other.on_their_way.pop(request, None)
            self.lives[life].on_their_way[request] = (prompt, told)
            self.written.pop(request, None)
            self.written[request] = self.now
        self.index.write(life, array(prompt), self.now, request, told)

    @rule(request=IDS)
    def confirm(self, request: str) -> None:
        for life in self.lives.values():
            if (found := life.on_their_way.pop(request, None)) is not None:
                prompt, told = found
                life.compute(reversed(prompt), self.now, told)
        self.written.pop(request, None)
        self.index.confirm(request, self.now)

    @rule(request=IDS)
    def retract(self, request: str) -> None:
        for life in self.lives.values():
            life.on_their_way.pop(request, None)
        self.written.pop(request, None)
        self.index.retract(request, self.now)

    @precondition(lambda self: self.lives)
    @rule(choice=st.integers(0, 9), prompt=PROMPTS)
    def stored(self, choice: int, prompt: list[int]) -> None:
        life = self.some(choice)
        model = self.lives[life]
        model.computed, model.awaited = without(model.computed, prompt), without(model.awaited, prompt)
        model.stored.update(dict.fromkeys(prompt, self.now))
        self.index.stored(life, array(prompt), self.now)

    @precondition(lambda self: self.lives)
    @rule(choice=st.integers(0, 9), prompt=PROMPTS)
    def removed(self, choice: int, prompt: list[int]) -> None:
        life = self.some(choice)
        model = self.lives[life]
        model.computed, model.awaited = without(model.computed, prompt), without(model.awaited, prompt)
        model.stored = {block: at for block, at in model.stored.items() if block not in prompt}
        self.index.removed(life, array(prompt), self.now)

    @precondition(lambda self: self.lives)
    @rule(choice=st.integers(0, 9), prompt=PROMPTS)
    def retold(self, choice: int, prompt: list[int]) -> None:
        life = self.some(choice)
        model = self.lives[life]
        told = [*prompt, *model.stored]
        model.computed, model.awaited = without(model.computed, told), without(model.awaited, told)
        model.stored = dict.fromkeys(prompt, self.now)
        self.index.retold(life, array(prompt), self.now)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.5, 10.0, 25.0]))
    def time_passes_and_the_index_is_swept(self, seconds: float) -> None:
        self.now += seconds
        for request, at in list(self.written.items()):
            if at + CLAIM_TTL <= self.now:
                del self.written[request]
                for life in self.lives.values():
                    life.on_their_way.pop(request, None)
        for life in self.lives.values():
            life.computed = [(block, at) for block, at in life.computed if at + TTL > self.now]
            life.awaited = [(block, at) for block, at in life.awaited if at + TOLD_TTL > self.now]
        assert not self.index.sweep(self.now)

    @precondition(lambda self: len(self.lives) > 1)
    @rule(choice=st.integers(0, 9))
    def a_peer_takes_over_what_is_known(self, choice: int) -> None:
        source, fresh = self.some(choice), self.index.join()
        self.index.load(fresh, self.index.dump(source, self.now), self.now)
        old = self.lives[source]
        young = [(block, at) for block, at in old.computed if at + TTL > self.now]
        self.lives[fresh] = Life(None, dict(old.stored), young)
        self.index.sweep(self.now)
        self.index.lay_out(sorted(self.lives))

    @invariant()
    def both_match_every_prompt_alike(self) -> None:
        for prompt, blocks in self.prompts:
            expected: list[int] = []
            for number in sorted(self.lives):
                missing = [i for i, block in enumerate(prompt) if not self.lives[number].has(block)]
                expected.append(missing[0] if missing else len(prompt))
            assert self.index.match(blocks).tolist() == expected
            tokens = [2 * length for length in expected]
            for _ in range(2):
                assert self.index.match(blocks, 2, np.zeros(len(tokens))).tolist() == tokens
        # The last prompt is the first one after the next step: its match is computed anew if anything has changed.
        self.prompts.reverse()

    @invariant()
    def both_count_alike(self) -> None:
        assert not self.index.sweep(self.now)
        reported = {block for life in self.lives.values() for block in life.stored}
        blocks = {b for life in self.lives.values() for b, _ in (*life.computed, *life.awaited)}
        blocks |= {b for life in self.lives.values() for prompt, _ in life.on_their_way.values() for b in prompt}
        known = self.index.memory()
        assert known.open_requests == len(self.written)
        assert known.blocks == len(reported) + len(blocks)
        held = [len(life.stored) + len(life.computed) + len(life.awaited) for life in self.lives.values()]
        assert known.holdings == sum(held)


Agreement.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgreement = Agreement.TestCase


def test_a_full_index_gives_up_what_was_not_used_for_longest_and_never_what_is_claimed() -> None:
    index = PrefixIndex(max_bytes=300_000)
    first, second = index.join(), index.join()
    index.lay_out([first, second])
    index.write(first, array(list(range(1, 65))), 0.0, "claimed")
    for turn in range(40):
        worker = (first, second)[turn % 2]
        index.write(worker, array(list(range(turn * 1000 + 1000, turn * 1000 + 1064))), float(turn), f"r{turn}")
        index.confirm(f"r{turn}", float(turn))
    memory = index.memory()
    assert memory.bytes <= memory.limit
    assert memory.evicted_memory > 0
    assert index.match(array(list(range(1, 65)))).tolist() == [64, 0]
    assert index.match(array(list(range(1000, 1064)))).tolist() == [0, 0]
    assert index.match(array(list(range(40000, 40064)))).tolist() == [0, 64]


def test_claims_that_fill_the_index_can_be_dropped_as_soon_as_they_are_settled() -> None:
    index = PrefixIndex(max_bytes=28_000)
    first, second = index.join(), index.join()
    for life in (first, second):
        index.write(life, array(list(range(1000 * life, 1000 * life + 100))), 0.0, f"r{life}")
    assert index.memory().bytes > index.memory().limit
    index.confirm(f"r{first}", 1.0)
    assert index.memory().bytes <= index.memory().limit
    assert (index.held(first), index.held(second)) == (0, 0)
    index.retract(f"r{second}", 2.0)
    index.stored(first, array(list(range(3000, 4000))), 3.0)
    assert index.memory().bytes <= index.memory().limit
    assert 0 < index.held(first) <= 400


def test_a_forgotten_worker_is_gone_at_once_and_its_memory_soon() -> None:
    index = PrefixIndex()
    gone, stays = index.join(), index.join()
    index.lay_out([gone, stays])
    for life in (gone, stays):
        index.write(life, array(list(range(20_000))), 0.0, f"r{life}")
        index.confirm(f"r{life}", 0.0)
    index.forget(gone)
    assert index.match(array([0, 1, 2])).tolist() == [0, 3]
    while index.sweep(1.0, budget=1000):
        pass
    assert index.memory().holdings == 20_000
    fresh = index.join()
    index.lay_out([fresh, stays])
    assert index.match(array([0, 1, 2])).tolist() == [0, 3]


def test_a_chain_that_repeats_itself_is_counted_once() -> None:
    index = PrefixIndex()
    life = index.join()
    index.lay_out([life])
    index.write(life, array([1, 2, 1]), 0.0, "r")
    index.confirm("r", 0.0)
    index.stored(life, array([3, 3]), 0.0)
    assert (index.memory().blocks, index.memory().holdings) == (3, 3)
    index.removed(life, array([1, 2, 3, 3]), 1.0)
    assert (index.memory().blocks, index.memory().holdings) == (0, 0)


def test_a_full_index_stays_within_its_bytes_while_prompts_come_that_never_come_again() -> None:
    index = PrefixIndex(max_bytes=2_000_000)
    lives = [index.join() for _ in range(3)]
    index.lay_out(lives)
    for turn in range(2000):
        index.write(lives[turn % 3], array(list(range(turn * 32, turn * 32 + 32))), float(turn), "r")
        index.confirm("r", float(turn))
        assert index.memory().bytes <= index.memory().limit
    memory = index.memory()
    assert memory.evicted_memory + memory.holdings == 2000 * 32
    newest = [turn for turn in range(2000) if index.match(array(list(range(turn * 32, turn * 32 + 32)))).any()]
    assert newest == list(range(2000 - len(newest), 2000))
