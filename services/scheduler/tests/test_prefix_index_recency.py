"""The order of use, held against an ordered dictionary."""

from collections import OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman_scheduler.domain.prefix_index.recency import Recency

BLOCKS = st.lists(st.integers(0, 12), unique=True, max_size=8)


class Order(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.recency = Recency(slack=4)
        self.model: OrderedDict[int, float] = OrderedDict()
        self.now = 0.0

    @rule(blocks=BLOCKS, step=st.sampled_from([0.0, 0.0, 1.0]))
    def use(self, blocks: list[int], step: float) -> None:
        self.now += step
        self.recency.use(blocks, self.now)
        for block in blocks:
            self.model[block] = self.now
            self.model.move_to_end(block)

    @rule(block=st.integers(0, 12))
    def discard(self, block: int) -> None:
        assert self.recency.discard(block) == (self.model.pop(block, None) is not None)

    @rule(count=st.integers(1, 4))
    def pop(self, count: int) -> None:
        oldest = [self.model.popitem(last=False)[0] for _ in range(min(count, len(self.model)))]
        assert self.recency.take(count) == oldest

    @rule(count=st.integers(1, 4), until=st.integers(0, 9))
    def take_until(self, count: int, until: int) -> None:
        old = [block for block, at in self.model.items() if at <= until][:count]
        assert self.recency.take(count, float(until)) == old
        for block in old:
            del self.model[block]

    @rule()
    def restore(self) -> None:
        entries = self.recency.entries()
        self.recency.restore(entries[::2])
        self.model = OrderedDict(entries[::2])

    @rule(change=st.sampled_from(["use", "discard", "take", "oldest_at", "restore", "promise", ""]))
    def promise(self, change: str) -> None:
        recency, before = self.recency, self.recency.freeze()
        promise = recency.promise()
        if change == "use":
            self.use([3, 5], 0.0)
        elif change == "discard":
            self.discard(3)
        elif change == "take" and self.model:
            assert recency.take(1)[0] == self.model.popitem(last=False)[0]
        elif change == "oldest_at":
            recency.oldest_at()
        elif change == "restore":
            self.restore()
        elif change == "promise":
            assert recency.promise().keep() == before
        assert promise.keep() == before

    @invariant()
    def same_order(self) -> None:
        assert self.recency.entries() == list(self.model.items())
        assert self.recency.oldest_at() == next(iter(self.model.values()), None)
        assert len(self.recency) == len(self.model)

    @invariant()
    def log_is_bounded(self) -> None:
        assert self.recency.logged <= 4 * len(self.model) + 64


Order.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestOrder = Order.TestCase


def test_a_prompt_that_comes_again_and_again_leaves_no_trail() -> None:
    recency = Recency()
    for turn in range(5000):
        recency.use(list(range(32)), float(turn))
    assert recency.logged < 10_000
    assert len(recency) == 32
