"""Which of our blocks an engine holds, from what it says of its own."""

import struct
from collections import Counter
from dataclasses import dataclass, field

import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_core.settled_target import salt, salted
from pointsman_worker_agent.domain.kv_blocks import EngineBlocks
from pointsman_worker_agent.domain.kv_wire import BlocksRemoved, BlocksStored, Cleared, EngineHash

MODEL = "llama"


def ours(tokens: list[int], block_tokens: int, model: str = MODEL, lora: str = "", cache_salt: str = "") -> list[int]:
    """The chain by its definition in `pointsman_contracts.kv`."""
    parent = salt("", cache_salt, "ids")
    chain: list[int] = []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        words = struct.pack(f"<{block_tokens}I", *tokens[start : start + block_tokens])
        parent = xxhash.xxh3_64_intdigest(words, parent)
        chain.append(parent)
    packed = salted(struct.pack(f"<{len(chain)}Q", *chain), model, lora)
    return list(struct.unpack(f"<{len(chain)}Q", packed))


@dataclass
class Engine:
    """A cache with blocks of its own size, named by everything before them, that tells what it does."""

    size: int
    told: EngineBlocks
    cached: dict[EngineHash, tuple[int, ...]] = field(default_factory=dict[EngineHash, tuple[int, ...]])
    """Name → the prompt up to the block's end."""
    copies: Counter[EngineHash] = field(default_factory=Counter[EngineHash])
    """A prompt whose beginning was evicted is computed again as a whole: what follows is there twice then."""

    def name(self, prefix: list[int]) -> EngineHash:
        return hash(tuple(prefix))

    def prefill(self, tokens: list[int]) -> None:
        ends = list(range(self.size, len(tokens) + 1, self.size))
        first = next((i for i, end in enumerate(ends) if self.name(tokens[:end]) not in self.cached), None)
        if first is None:
            return
        run = ends[first:]
        hashes = [self.name(tokens[:end]) for end in run]
        for name, end in zip(hashes, run, strict=True):
            self.cached[name] = tuple(tokens[:end])
            self.copies[name] += 1
        start = run[0] - self.size
        parent = self.name(tokens[:start]) if start else None
        self.told.apply_event(0, BlocksStored(hashes, parent, tokens[start : run[-1]], self.size), MODEL)

    def evict(self, names: list[EngineHash]) -> None:
        for name in names:
            self.copies[name] -= 1
            if not self.copies[name]:
                del self.cached[name]
        self.told.apply_event(0, BlocksRemoved(names), MODEL)

    def truth(self, block_tokens: int) -> set[int]:
        """Ours whose every part is in the cache, found without following anything."""
        held: set[int] = set()
        for prefix in self.cached.values():
            if len(prefix) % block_tokens:
                continue
            start = len(prefix) - block_tokens
            parts = range(start + self.size, len(prefix) + 1, self.size)
            if all(self.name(list(prefix[:end])) in self.cached for end in parts):
                held.add(ours(list(prefix), block_tokens)[-1])
        return held


def test_equal_sizes_give_the_chain_that_requests_are_hashed_by() -> None:
    told = EngineBlocks(block_tokens=4)
    tokens = list(range(100, 116))
    Engine(4, told).prefill(tokens)
    assert told.held() == ours(tokens, 4)


def test_the_chain_is_the_published_one() -> None:
    told = EngineBlocks(block_tokens=4)
    told.apply_event(0, BlocksStored([1], None, [1, 2, 3, 4], 4), MODEL)
    # XXH3-64 of 01000000 02000000 03000000 04000000 seeded with salt("", "", "ids"), salted with ("llama", "").
    assert [f"{block:016x}" for block in told.held()] == ["201081aa193f9a8e"]


def test_a_block_of_ours_is_held_once_all_its_parts_are() -> None:
    told = EngineBlocks(block_tokens=8)
    engine = Engine(2, told)
    engine.prefill([1, 2, 3, 4, 5, 6])
    assert told.held() == []
    engine.prefill([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert told.held() == ours([1, 2, 3, 4, 5, 6, 7, 8], 8)
    engine.evict([engine.name([1, 2, 3, 4])])
    assert told.held() == []


def test_an_adapter_shares_nothing_with_its_model() -> None:
    told = EngineBlocks(block_tokens=2)
    told.apply_event(0, BlocksStored([1], None, [5, 6], 2, "sql", [["sql"]]), MODEL)
    assert told.held() == ours([5, 6], 2, "sql", "sql")


def test_a_cache_salt_begins_another_chain() -> None:
    told = EngineBlocks(block_tokens=2)
    told.apply_event(0, BlocksStored([1, 2], None, [5, 6, 7, 8], 2, None, [["tenant-7"], None]), MODEL)
    assert told.held() == ours([5, 6, 7, 8], 2, cache_salt="tenant-7")


def test_blocks_with_images_and_all_that_follow_them_are_not_taken_for_their_tokens() -> None:
    told = EngineBlocks(block_tokens=2)
    told.apply_event(
        0, BlocksStored([1, 2, 3], None, [5, 6, 7, 8, 9, 10], 2, None, [None, [["image", 0]], None]), MODEL
    )
    told.apply_event(0, BlocksStored([4], 3, [11, 12], 2), MODEL)
    assert told.held() == ours([5, 6], 2)
    assert told.unknown == 3


def test_a_block_whose_beginning_was_never_heard_of_is_counted() -> None:
    told = EngineBlocks(block_tokens=2)
    told.apply_event(0, BlocksStored([9], 8, [1, 2], 2), MODEL)
    assert (told.held(), told.unknown) == ([], 1)


def test_a_size_that_does_not_divide_ours_is_counted() -> None:
    told = EngineBlocks(block_tokens=64)
    told.apply_event(0, BlocksStored([9], None, list(range(48)), 48), MODEL)
    assert (told.held(), told.unknown) == ([], 1)


def test_a_block_that_two_ranks_hold_stays_until_both_dropped_it() -> None:
    told = EngineBlocks(block_tokens=2)
    for rank in (0, 1):
        told.apply_event(rank, BlocksStored([1], None, [5, 6], 2), MODEL)
    assert told.apply_event(0, BlocksRemoved([1]), MODEL).removed == []
    assert told.apply_event(1, Cleared(), MODEL).removed == ours([5, 6], 2)
    assert told.size == 0


def test_a_second_copy_keeps_a_block_when_the_first_leaves() -> None:
    told = EngineBlocks(block_tokens=2)
    for _ in range(2):
        told.apply_event(0, BlocksStored([1], None, [5, 6], 2), MODEL)
    assert told.apply_event(0, BlocksRemoved([1]), MODEL).removed == []
    assert told.apply_event(0, BlocksRemoved([1]), MODEL).removed == ours([5, 6], 2)


def test_after_a_loss_what_was_known_before_gives_way_first_when_there_is_too_much() -> None:
    told = EngineBlocks(block_tokens=1)
    told.apply_event(0, BlocksStored([1, 2, 3], None, [1, 2, 3], 1), MODEL, capacity=3)
    told.note_lost_events(0)
    assert told.size == 3
    gone = told.apply_event(0, BlocksStored([7, 8], None, [7, 8], 1), MODEL, capacity=3)
    assert gone.removed == ours([1, 2, 3], 1)[:2]
    assert told.size == 3


def prompt(family: int, length: int, fork: int) -> list[int]:
    return [family * 1000 + (i if i < fork else i + 500) for i in range(length)]


PROMPTS = st.builds(prompt, st.integers(1, 2), st.integers(0, 26), st.integers(0, 26))
EVICTIONS: st.SearchStrategy[tuple[int, ...]] = st.lists(st.integers(0, 60), max_size=6).map(tuple)


@settings(max_examples=200, deadline=None)
@given(
    size=st.sampled_from([1, 2, 4, 8]),
    steps=st.lists(PROMPTS | EVICTIONS, max_size=25),
)
def test_whatever_comes_and_goes_we_hold_what_is_there_in_full(
    size: int, steps: list[list[int] | tuple[int, ...]]
) -> None:
    told = EngineBlocks(block_tokens=8)
    engine = Engine(size, told)
    for step in steps:
        if isinstance(step, list):
            engine.prefill(step)
        else:
            names = list(engine.cached)
            engine.evict(list(dict.fromkeys(names[i % len(names)] for i in step)) if names else [])
        assert set(told.held()) == engine.truth(8)


@settings(max_examples=200, deadline=None)
@given(
    size=st.sampled_from([1, 2, 4, 8]),
    before=st.lists(PROMPTS, max_size=10),
    after=st.lists(PROMPTS | EVICTIONS, max_size=10),
)
def test_of_a_former_life_nothing_is_left_and_of_the_new_one_everything(
    size: int, before: list[list[int]], after: list[list[int] | tuple[int, ...]]
) -> None:
    told = EngineBlocks(block_tokens=8)
    former, engine = Engine(size, told), Engine(size, told)
    for prompt in before:
        former.prefill(prompt)
    told.note_lost_events(0)
    for step in after:
        if isinstance(step, list):
            engine.prefill(step)
        else:
            names = list(engine.cached)
            engine.evict(list(dict.fromkeys(names[i % len(names)] for i in step)) if names else [])
    told.drop_doubted(0)
    assert set(told.held()) == engine.truth(8)
