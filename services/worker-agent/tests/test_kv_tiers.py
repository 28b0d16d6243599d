"""Blocks of each tier of an engine, from what it says of its own, and what schedulers hear of them."""

import struct
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery
from pointsman_worker_agent.domain import lower_tiers
from pointsman_worker_agent.domain.engine_block import Delta
from pointsman_worker_agent.domain.kv_blocks import EngineBlocks
from pointsman_worker_agent.domain.kv_feed import KvFeed
from pointsman_worker_agent.domain.kv_wire import BlocksRemoved, BlocksStored

MODEL: Final = "llama"
SHARED: Final = "store:fleet"


def stored(first: int, count: int = 1, tier: str = "", parent: int | None = None) -> BlocksStored:
    """Blocks of two tokens, named by numbers from `first` on."""
    names = list(range(first, first + count))
    tokens = [token for name in names for token in (name, name)]
    return BlocksStored([*names], parent, tokens, 2, tier=tier)


def apply(blocks: EngineBlocks, *events: BlocksStored | BlocksRemoved, rank: int = 0) -> list[Delta]:
    return [blocks.apply_event(rank, event, MODEL) for event in events]


@pytest.mark.requirement("TIERS-1")
def test_a_removal_from_one_tier_leaves_the_others() -> None:
    blocks = EngineBlocks(2)
    [came, below, gone] = apply(blocks, stored(1), stored(1, tier="host"), BlocksRemoved([1]))
    assert (came.tier, below.tier) == ("", "host")
    assert came.stored == below.stored == gone.removed
    assert blocks.held() == []
    assert blocks.list_lower() == {"host": came.stored}
    [left] = apply(blocks, BlocksRemoved([1], tier="host"))
    assert (left.tier, left.removed, blocks.count_lower()) == ("host", came.stored, {"host": 0})


def test_names_alone_are_known_by_the_blocks_that_the_device_has_or_had() -> None:
    blocks = EngineBlocks(4)
    apply(blocks, stored(1, 2), BlocksStored([1, 2], None, [], 0, tier="host"), BlocksRemoved([1, 2]))
    [again] = apply(blocks, BlocksStored([1, 2], None, [], 0, tier="disk"))
    assert len(again.stored) == 1
    assert blocks.count_lower() == {"host": 1, "disk": 1}
    assert blocks.unknown == 0
    apply(blocks, BlocksStored([9], None, [], 0, tier="host"))
    assert blocks.unknown == 1


def test_a_block_of_ours_is_in_a_tier_once_all_its_parts_are() -> None:
    blocks = EngineBlocks(4)
    first, second = apply(blocks, stored(1, 1, "host"), stored(2, 1, "host", parent=1))
    assert (len(first.stored), len(second.stored)) == (0, 1)
    [gone] = apply(blocks, BlocksRemoved([1], tier="host"))
    assert gone.removed == second.stored


def test_a_prompt_goes_on_at_a_block_that_only_a_lower_tier_has() -> None:
    blocks = EngineBlocks(2)
    apply(blocks, stored(1), stored(1, tier="host"), BlocksRemoved([1]), stored(2, parent=1))
    assert (len(blocks.held()), blocks.unknown) == (1, 0)


def test_tokens_without_what_belongs_to_them_say_nothing_where_the_device_tells_it() -> None:
    """vLLM reports offloaded blocks of prompts with images as if they were text (vllm-project/vllm #43468)."""
    blocks = EngineBlocks(2)
    picture = BlocksStored([1], None, [1, 1], 2, None, [["image-7", 0]])
    apply(blocks, picture, stored(1, tier="host"))
    assert blocks.count_lower() == {}


def test_a_block_that_chunks_share_stays_until_each_of_them_left() -> None:
    blocks = EngineBlocks(2)
    apply(blocks, stored(1, tier="host"), stored(1, tier="host"), BlocksRemoved([1], tier="host"))
    assert blocks.count_lower() == {"host": 1}
    apply(blocks, BlocksRemoved([1], tier="host"), BlocksRemoved([1], tier="host"))
    assert blocks.count_lower() == {"host": 0}


def test_an_engine_that_clears_its_cache_leaves_a_shared_store_as_it_is() -> None:
    blocks = EngineBlocks(2)
    apply(blocks, *(stored(1, tier=tier) for tier in ("", "host", "disk", "store", SHARED)))
    blocks.clear(0)
    assert blocks.count_lower() == {"host": 0, "disk": 0, "store": 0, SHARED: 1}


def test_after_a_lost_publisher_only_what_was_reported_since_is_believed() -> None:
    blocks = EngineBlocks(2)
    apply(blocks, stored(1, 2, "host"), stored(1, tier=SHARED))
    blocks.doubt_lower(0)
    apply(blocks, stored(2, tier="host", parent=1))
    [gone] = [delta for delta in blocks.drop_doubted(0) if delta.removed]
    assert (gone.tier, len(gone.removed)) == ("host", 1)
    assert blocks.count_lower() == {"host": 1, SHARED: 1}


def test_a_tier_that_reports_no_removals_is_bounded() -> None:
    blocks = EngineBlocks(2)
    before, lower_tiers.MOST_BLOCKS = lower_tiers.MOST_BLOCKS, 10  # type: ignore[misc] - a test's own bound
    try:
        removed = [delta.removed for delta in apply(blocks, *(stored(name, tier="disk") for name in range(1, 31)))]
    finally:
        lower_tiers.MOST_BLOCKS = before  # type: ignore[misc]
    assert blocks.count_lower() == {"disk": 10}
    assert sum(map(len, removed)) == 20


NAMES: Final = st.integers(1, 6)
EVENTS: Final = st.tuples(st.sampled_from(["", "host", "disk"]), NAMES, st.booleans())


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_whatever_comes_and_goes_each_tier_holds_what_is_there(events: Sequence[tuple[str, int, bool]]) -> None:
    """Prompts of one block, so that every name stands for itself."""
    blocks, truth = EngineBlocks(2), dict[tuple[str, int], int]()
    for tier, name, comes in events:
        if comes:
            truth[tier, name] = truth.get((tier, name), 0) + 1
            apply(blocks, stored(name, tier=tier))
        else:
            if truth.get((tier, name)):
                truth[tier, name] -= 1
            apply(blocks, BlocksRemoved([name], tier=tier))
    counts = blocks.count_lower() | {"": len(blocks.held())}
    for tier in ("", "host", "disk"):
        assert counts.get(tier, 0) == sum(1 for (where, _), copies in truth.items() if where == tier and copies)


def feed(blocks: EngineBlocks, store: str = "") -> KvFeed:
    made = KvFeed(
        pool="p", worker="w", agent="a", block_tokens=2, held=blocks.held, lower=blocks.list_lower, store=store
    )
    made.begin_life("b1")
    return made


def told(messages: Sequence[WorkerKvEvents]) -> list[tuple[str, int]]:
    return [(change.op, len(change.blocks) // 8) for message in messages for change in message.changes]


def test_changes_of_a_tier_go_out_together_and_the_last_one_of_a_block_counts() -> None:
    blocks = EngineBlocks(2)
    out = feed(blocks)
    assert told(out.take_due_messages(0)) == [("cleared", 0)]
    for event in (stored(1, 3), stored(1, 3, "host"), BlocksRemoved([2], tier="host"), BlocksRemoved([1])):
        out.add_changes(blocks.apply_event(0, event, MODEL))
    assert out.waiting_blocks == 6
    assert told(out.take_due_messages(0)) == [("removed", 1), ("stored", 2), ("removed@host", 1), ("stored@host", 2)]
    assert out.take_due_messages(0) == []


def test_an_engine_says_at_once_that_it_reaches_a_store_even_an_empty_one() -> None:
    assert told(feed(EngineBlocks(2), SHARED).take_due_messages(0)) == [("cleared", 0), (f"stored@{SHARED}", 0)]


def test_a_snapshot_has_the_tiers_for_those_that_ask_and_the_device_alone_for_earlier_readers() -> None:
    blocks = EngineBlocks(2)
    apply(blocks, stored(1, 3), stored(1, 2, "host"), stored(1, tier=SHARED))
    out = feed(blocks, SHARED)
    earlier = out.answer_query(WorkerKvQuery(), 0.0)
    assert (earlier.total, len(earlier.held), earlier.tiers) == (3, 24, ())
    asked = out.answer_query(WorkerKvQuery(tiers=True), 0.0)
    assert [(each.tier, each.blocks) for each in asked.tiers] == [
        ("host", 2), ("disk", 0), ("store", 0), (SHARED, 1),
    ]  # fmt: skip
    assert asked.total == 6
    assert struct.unpack("<6Q", asked.held)[:3] == struct.unpack("<3Q", earlier.held)
