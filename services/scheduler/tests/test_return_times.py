"""How long a session's prefix is worth its place, from the times between turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_scheduler.domain.cache_room.return_times import EDGES_S, FLOWS, ReturnTimes

gaps = st.floats(min_value=0.0, max_value=2000.0)


@given(st.lists(gaps, max_size=60), st.floats(0.0, 500.0), st.floats(0.0, 500.0))
def test_a_prefix_that_takes_longer_to_compute_is_kept_no_shorter(learnt: list[float], one: float, two: float) -> None:
    times = ReturnTimes()
    for gap in learnt:
        times.learn_gap("flow", gap)
    less, more = sorted((one, two))
    assert times.worth_keeping_s("flow", less) <= times.worth_keeping_s("flow", more)
    assert times.worth_keeping_s("flow", 0.0) == 0.0


@given(st.lists(gaps, max_size=60))
def test_shares_of_turns_add_up_to_one(learnt: list[float]) -> None:
    times = ReturnTimes()
    for gap in learnt:
        times.learn_gap("flow", gap)
    assert sum(times.shares_of("flow")) == pytest.approx(1.0)
    assert all(share >= 0.0 for share in times.shares_of("other"))


def test_prefixes_of_sessions_that_return_soon_are_kept_until_then_and_no_longer() -> None:
    times = ReturnTimes()
    for _ in range(1000):
        times.learn_gap("tools", 3.0)
        times.learn_gap("people", 300.0)
        times.learn_gap("once", float("inf"))
    assert times.worth_keeping_s("tools", 20.0) == 4.0
    assert times.worth_keeping_s("people", 20.0) == 0.0
    assert times.worth_keeping_s("people", 2000.0) == EDGES_S[-1]
    assert times.worth_keeping_s("once", 20.0) < times.worth_keeping_s("tools", 20.0)


def test_an_unknown_flow_has_the_times_of_the_pool_and_before_those_the_published_ones() -> None:
    times = ReturnTimes()
    assert 4.0 <= times.worth_keeping_s("new", 20.0) <= 16.0
    for _ in range(4000):
        times.learn_gap("people", 300.0)
    assert times.worth_keeping_s("new", 20.0) == 0.0


def test_old_turns_fade() -> None:
    times = ReturnTimes()
    for _ in range(10_000):
        times.learn_gap("", 0.1)
    for _ in range(10_000):
        times.learn_gap("", 100.0)
    assert times.shares_of("")[0] < 0.2


def test_flows_are_bounded() -> None:
    times = ReturnTimes()
    for number in range(3 * FLOWS):
        times.learn_gap(f"flow-{number}", 1.0)
    assert len(times._flows) == FLOWS  # pyright: ignore[reportPrivateUsage]


def test_sessions_that_are_awaited_count_by_the_bins_that_they_outlasted() -> None:
    times = ReturnTimes()
    for _ in range(1000):
        for place in range(5):
            times.note_outlasted("once", place)
    assert sum(times.shares_of("once")) == pytest.approx(1.0)
    assert sum(times.shares_of("once")[:5]) < 0.06
    assert times.worth_keeping_s("once", 20.0) == 0.0
    assert times.worth_keeping_s("other", 20.0) == 0.0, "it has the times of the pool"


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), gaps), max_size=60))
def test_what_awaited_turns_showed_is_void_once_they_came(turns: list[tuple[str, float]]) -> None:
    plain, awaiting = ReturnTimes(), ReturnTimes()
    for flow, gap in turns:
        bins = sum(edge < gap for edge in EDGES_S)
        for place in range(bins):
            awaiting.note_outlasted(flow, place)
        awaiting.forget_awaited(flow, bins)
        for each in (plain, awaiting):
            each.learn_gap(flow, gap)
    for flow in ("a", "b", "c"):
        assert awaiting.shares_of(flow) == plain.shares_of(flow)
