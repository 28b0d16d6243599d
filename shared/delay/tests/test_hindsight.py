"""The cost of each engine, computed once the request has ended."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_delay.formula import BOUNDLESS, EngineFigures
from pointsman_delay.hindsight import EngineThen, Hindsight, Scale, costs_us
from pointsman_delay.pass_model import Rates
from pointsman_plugins.scheduling.arrays import FEW

RATES = Rates(15.0, 0.02, 1e-7, 1e-9, 8.0, 0.1, 4e-5)
SCALE = Scale(RATES, 200.0, 8192.0, 16.0)
IDLE = EngineFigures(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, BOUNDLESS)
WORKERS = ("a", "b")


def candidate(worker: str = "a", uncached: int = 1000, came: int = 0, **figures: float) -> EngineThen:
    return EngineThen(worker, uncached, came, IDLE._replace(**figures))


def cost_ms(of: EngineThen, output: int = 100) -> float:
    [cost] = costs_us([of], 0.0, 1000, output, SCALE)
    return cost / 1000.0


def judge_of_steady_traffic(requests: int = 80) -> Hindsight[int]:
    """Requests of 1,000 tokens, one at a time in turn on two engines whose passes take 35 ms and 8 ms a token."""
    judge = Hindsight[int]()
    for number in range(requests):
        at = number * 1000.0
        judge.add_decision(number, at, 1000, WORKERS, (0, 0), WORKERS[number % 2])
        judge.started(number, at + 35.0)
        judge.ended(number, at + 35.0 + 19 * 8.0, 20)
    return judge


def test_an_idle_engine_costs_the_wait_for_the_pass_and_the_request_s_own_steps() -> None:
    pass_ms = 15.0 + 1000 * 0.02 + 1000**2 * 1e-7 + 1e-9 * 1000 * 500
    own_ms = 100 * (8.0 + 4e-5 * 1050 + 0.1) / 16.0
    assert cost_ms(candidate()) == pytest.approx(pass_ms + own_ms, abs=0.01)


def test_requests_that_came_later_pay_for_the_work() -> None:
    work_ms = 15.0 + 1000 * 0.02 + 1000**2 * 1e-7 + 1e-9 * 1000 * 500
    more = cost_ms(candidate(came=3)) - cost_ms(candidate())
    assert more == pytest.approx(3 * work_ms, abs=0.01)


def test_the_end_of_the_pass_in_flight_delays_the_first_token() -> None:
    busy = candidate(idle=0.0, free_at=40.0)
    assert cost_ms(busy) - cost_ms(candidate()) == pytest.approx(40.0, abs=0.01)


def test_the_real_length_counts() -> None:
    beside = candidate(decoding=4.0, context=4000.0, carried=4000.0)
    assert cost_ms(beside, output=400) > cost_ms(beside, output=10)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5), st.floats(0, 100)), min_size=1, max_size=8))
def test_many_engines_cost_what_few_do(engines: list[tuple[int, int, float]]) -> None:
    few = [candidate(uncached=uncached, came=came, idle=0.0, free_at=free) for uncached, came, free in engines]
    many = few * (FEW // len(few) + 1)
    expected = costs_us(few, 0.0, 1000, 100, SCALE)
    assert costs_us(many, 0.0, 1000, 100, SCALE)[: len(few)] == pytest.approx(expected, abs=1)


def test_nothing_is_judged_before_the_model_is_trusted() -> None:
    judge = judge_of_steady_traffic(requests=4)
    assert not judge.trusted
    assert judge.judge() == []


def test_a_request_is_judged_once_it_has_ended_and_only_once() -> None:
    judge = judge_of_steady_traffic()
    assert len(judge.judge()) == 80
    judge.add_decision(100, 90_000.0, 1000, WORKERS, (0, 0), "a")
    judge.started(100, 90_035.0)
    assert judge.judge() == []
    judge.ended(100, 90_100.0, 20)
    [judged] = judge.judge()
    assert (judged.key, judged.output, len(judged.costs_us)) == (100, 20, 2)
    assert judge.judge() == []


def test_a_worse_choice_has_regret_by_the_time_that_it_took() -> None:
    judge = judge_of_steady_traffic()
    judge.judge()
    judge.add_decision(1000, 90_000.0, 8000, WORKERS, (0, 0), "a")
    judge.add_decision(1001, 90_001.0, 1000, WORKERS, (0, 0), "a")
    judge.started(1000, 90_180.0)
    judge.started(1001, 90_215.0)
    judge.ended(1001, 90_300.0, 12)
    [judged] = judge.judge()
    busy, idle = judged.costs_us
    # The pass in flight ended 179 ms after the decision, by the first token that it made.
    assert judged.candidates[0].figures.free_at == 90_180.0
    assert busy - idle > 179_000


def test_arrivals_are_counted_until_the_first_token() -> None:
    judge = judge_of_steady_traffic()
    judge.judge()
    base = 90_000.0
    judge.add_decision(1000, base, 1000, WORKERS, (0, 0), "a")
    for number in range(3):
        judge.add_decision(1001 + number, base + 5 + number, 100, WORKERS, (0, 0), "b")
    judge.started(1000, base + 35)
    judge.add_decision(2000, base + 40, 100, WORKERS, (0, 0), "b")
    judge.ended(1000, base + 100, 20)
    [judged] = judge.judge()
    assert [each.came for each in judged.candidates] == [0, 3]


@pytest.mark.parametrize("output", [None, 0])
def test_a_request_without_a_complete_answer_is_not_judged(output: int | None) -> None:
    judge = judge_of_steady_traffic()
    judge.judge()
    judge.add_decision(1000, 90_000.0, 1000, WORKERS, (0, 0), "a")
    assert not judge.ended(1000, 90_050.0, output)
    assert judge.judge() == []


def test_a_request_that_moved_is_followed_and_not_judged() -> None:
    judge = judge_of_steady_traffic()
    judge.judge()
    judge.add_decision(1000, 90_000.0, 1000, WORKERS, (0, 0), "a")
    judge.moved(1000, 90_010.0, "b")
    judge.started(1000, 90_050.0)
    assert not judge.ended(1000, 90_100.0, 20)


def test_an_answer_without_a_stream_is_judged_by_the_predicted_first_token() -> None:
    judge = judge_of_steady_traffic()
    judge.judge()
    judge.add_decision(1000, 90_000.0, 1000, WORKERS, (0, 0), "a", told=False)
    judge.add_decision(1001, 90_400.0, 1000, WORKERS, (0, 0), "b")
    assert judge.ended(1000, 91_000.0, 20)
    [judged] = judge.judge()
    assert [each.came for each in judged.candidates] == [0, 0]


def test_engines_that_come_and_go_are_known_when_they_are_seen() -> None:
    judge = judge_of_steady_traffic()
    judge.judge()
    judge.add_decision(1000, 90_000.0, 1000, ("a", "b", "c"), (0, 0, 512), "c")
    judge.started(1000, 90_030.0)
    judge.ended(1000, 90_200.0, 20)
    [judged] = judge.judge()
    assert [each.worker for each in judged.candidates] == ["a", "b", "c"]
    assert judged.candidates[2].uncached == 488
    assert np.argmin(judged.costs_us) == 2
