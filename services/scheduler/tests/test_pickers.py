"""From totals to an ordered choice."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_plugins.scheduling.arrays import FEW
from pointsman_plugins.scheduling.dice import Dice
from pointsman_scheduler.plugins.pickers.ranking import best
from pointsman_testing.scheduler_bench import Bench


def picking(picker: object, *loads: int) -> Bench:
    """Workers w0, w1, … whose only score falls with their load, in the order given."""
    bench = Bench({"filters": [], "scorers": ["queue"], "picker": picker})
    names = [f"w{number}" for number in range(len(loads))]
    bench.join(*names)
    for name, waiting in zip(names, loads, strict=True):
        bench.hear(name, waiting=waiting)
    return bench


def orders(bench: Bench, times: int) -> list[list[str]]:
    """The endpoints of as many decisions, none of which stays on the books."""
    found: list[list[str]] = []
    for seed in range(times):
        request = bench.request()
        found.append([worker.name for worker in bench.decide(request, seed).endpoints])
        bench.pool.books.completed(request.key, bench.now, ok=False)
        bench.now += 1  # what ended is in no report any more
        for number, worker in enumerate(bench.pool.fleet.workers):
            assert worker.report is not None, number
            bench.hear(worker.name, waiting=worker.report.waiting)
    return found


def test_max_score_names_the_best_and_then_its_fallbacks() -> None:
    assert orders(picking("max-score", 4, 0, 3, 1, 2), 3) == [["w1", "w3", "w4", "w2"]] * 3


@pytest.mark.requirement("S2-5", "S2-35")
def test_fallbacks_are_as_many_as_asked_for() -> None:
    assert orders(picking({"use": "max-score", "endpoints": 2}, 4, 0, 3, 1), 1) == [["w1", "w3"]]
    assert len(orders(picking("max-score", 1), 1)[0]) == 1


@pytest.mark.parametrize("count", [5, FEW + 40])
def test_each_of_equals_is_as_likely(count: int) -> None:
    bench = picking({"use": "max-score", "endpoints": 1}, *[0] * 5, *[9] * (count - 5))
    first = Counter(order[0] for order in orders(bench, 1000))
    assert set(first) == {f"w{number}" for number in range(5)}
    assert min(first.values()) >= 140
    assert max(first.values()) <= 260


@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0, 2.5, 7.0]), min_size=1, max_size=200),
    st.integers(1, 8),
    st.integers(0, 2**48),
)
def test_best_are_never_worse_than_those_left_out(totals: list[float], count: int, seed: int) -> None:
    order = best(np.array(totals), count, Dice(seed))
    assert len(order) == min(count, len(totals)) == len(set(order))
    values = [totals[index] for index in order]
    assert values == sorted(totals, reverse=True)[: len(order)]


def test_random_spreads_whatever_the_totals() -> None:
    first = Counter(order[0] for order in orders(picking("random", 0, 50, 100, 3), 1200))
    assert min(first.values()) >= 230


def test_round_robin_takes_each_in_turn_whatever_the_totals() -> None:
    found = orders(picking({"use": "round-robin", "endpoints": 2}, 0, 50, 9), 4)
    assert found == [["w0", "w1"], ["w1", "w2"], ["w2", "w0"], ["w0", "w1"]]


def test_round_robin_goes_on_where_it_was_when_workers_join_and_leave() -> None:
    bench = picking({"use": "round-robin", "endpoints": 1}, 0, 0, 0)
    first = bench.chosen()
    bench.pool.remove("w0", bench.now)
    bench.join("w11")
    assert [first, *(bench.chosen() for _ in range(4))] == ["w0", "w1", "w11", "w2", "w1"]


def test_weighted_random_follows_the_totals() -> None:
    bench = picking("weighted-random", 0, 5, 10)  # totals 1, 0.5, 0
    found = orders(bench, 1500)
    first = Counter(order[0] for order in found)
    assert first["w0"] / first["w1"] == pytest.approx(2.0, rel=0.2)
    assert first["w2"] == 0
    assert {order[-1] for order in found} == {"w2"}


def test_weighted_random_without_weights_is_uniform() -> None:
    bench = Bench({"filters": [], "scorers": ["kv-utilization"], "picker": "weighted-random"})
    bench.join("w0", "w1", "w2")
    for name in ("w0", "w1", "w2"):
        bench.hear(name, kv_usage=1.0)
    assert min(Counter(order[0] for order in orders(bench, 900)).values()) >= 240


def test_top_k_falls_on_one_of_the_best_and_keeps_the_order_of_the_others() -> None:
    found = orders(picking({"use": "top-k", "k": 3}, 4, 0, 3, 1, 2), 600)
    first = Counter(order[0] for order in found)
    assert set(first) == {"w1", "w3", "w4"}
    assert min(first.values()) >= 150
    assert {tuple(order) for order in found} == {
        ("w1", "w3", "w4", "w2"),
        ("w3", "w1", "w4", "w2"),
        ("w4", "w1", "w3", "w2"),
    }


def test_top_k_falls_on_more_than_it_names() -> None:
    found = orders(picking({"use": "top-k", "k": 4, "endpoints": 2}, *range(6)), 200)
    assert {order[0] for order in found} == {"w0", "w1", "w2", "w3"}
    assert all(len(order) == 2 for order in found)


@pytest.mark.parametrize("picker", ["max-score", "random", "weighted-random", "top-k", "power-of-two", "round-robin"])
@pytest.mark.parametrize("endpoints", [1, 2, 5, 8])
def test_every_picker_names_as_many_endpoints_as_configured(picker: str, endpoints: int) -> None:
    found = orders(picking({"use": picker, "endpoints": endpoints}, *range(6)), 30)
    assert {len(set(order)) for order in found} == {len(order) for order in found} == {min(endpoints, 6)}


def test_of_two_drawn_the_better_is_chosen() -> None:
    found = orders(picking("power-of-two", 0, 1, 2, 3), 1200)
    first = Counter(order[0] for order in found)
    # With four candidates the best of two is the i-th best in 3, 2, 1 and 0 of 6 pairs.
    assert [first[f"w{n}"] / 1200 for n in range(4)] == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0], abs=0.05)
    assert all(int(order[0][1:]) < int(order[1][1:]) for order in found)
    assert all(len(set(order)) == 4 for order in found)


@pytest.mark.parametrize("picker", ["max-score", "random", "weighted-random", "top-k", "power-of-two", "round-robin"])
def test_the_same_seed_picks_the_same(picker: str) -> None:
    assert orders(picking(picker, *[0] * 20), 20) == orders(picking(picker, *[0] * 20), 20)


@pytest.mark.requirement("S2-5")
@pytest.mark.parametrize("picker", ["max-score", "random", "weighted-random", "top-k", "power-of-two", "round-robin"])
def test_a_single_candidate_is_picked(picker: str) -> None:
    assert orders(picking(picker, 5), 2) == [["w0"], ["w0"]]


def test_draws_one_by_one_and_all_at_once_are_the_same_numbers() -> None:
    single, several = Dice(42), Dice(42)
    assert [single.uniform() for _ in range(100)] == several.uniforms(100).tolist()
    assert single.uniform() == several.uniform()
    assert all(0 <= Dice(seed).below(7) < 7 for seed in range(100))
