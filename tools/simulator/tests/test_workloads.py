"""Synthetic workloads share what they say they share, and come at the rate that was asked for."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.workloads import WORKLOADS, generate_workload


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(WORKLOADS)), st.integers(2, 120), st.floats(0.5, 50.0), st.integers(0, 5))
def test_a_workload_has_the_count_and_the_rate_asked_for(name: str, count: int, rate: float, seed: int) -> None:
    requests = generate_workload(name, count, rate, seed)
    arrivals = [request.arrival_ms for request in requests]
    assert len(requests) == count
    assert arrivals == sorted(arrivals)
    if len(set(arrivals)) > 1:
        assert arrivals[-1] == pytest.approx(count / rate * 1000)
    for request in requests:
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        assert len(request.blocks) >= request.prompt_tokens // 64
        assert request.prompt_tokens + request.output_tokens <= EngineConfig().num_blocks * 64


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_same_seed_gives_the_same_workload_and_another_one_does_not(name: str) -> None:
    assert generate_workload(name, 50, 2.0, 1) == generate_workload(name, 50, 2.0, 1)
    assert generate_workload(name, 50, 2.0, 1) != generate_workload(name, 50, 2.0, 2)


def shared_part(name: str) -> float:
    """The part of all prompt blocks that an earlier request of the workload has, too."""
    seen: set[int] = set()
    found = total = 0
    for request in generate_workload(name, 1000, 4.0):
        blocks = request.blocks[: request.prompt_tokens // 64]
        found += sum(block in seen for block in blocks)
        total += len(blocks)
        seen.update(request.blocks)
    return found / total


@pytest.mark.requirement("S2-19")
def test_the_shapes_differ_in_their_reusable_part() -> None:
    assert shared_part("system-prompts") > 0.8
    assert shared_part("agents") > 0.7
    assert shared_part("chat") > 0.5
    assert shared_part("rag") > 0.5
    assert 0.05 < shared_part("bursts") < 0.5


def test_a_turn_of_a_chat_begins_with_the_turn_before_it_and_its_answer() -> None:
    by_session: dict[int, list[int]] = {}
    for request in generate_workload("chat", 400, 4.0):
        if not request.blocks:
            continue
        session = request.blocks[-1] >> 24
        known = by_session.get(session)
        if known is not None:
            assert request.blocks[: len(known)] == known
        by_session[session] = request.blocks


def test_bursts_come_at_one_instant_and_adapters_by_popularity() -> None:
    at_once = Counter(request.arrival_ms for request in generate_workload("bursts", 500, 4.0))
    assert max(at_once.values()) >= 10
    adapters = Counter(request.lora for request in generate_workload("adapters", 2000, 4.0)).most_common()
    assert len(adapters) > 20
    assert adapters[0][1] > 5 * adapters[20][1]


def test_the_error_for_an_unknown_shape_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown workload 'chats'; did you mean 'chat'"):
        generate_workload("chats", 1, 1.0)
