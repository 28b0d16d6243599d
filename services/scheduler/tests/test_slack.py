"""Waiting requests with service levels: which ones are in time, which ones are refused, and what shows that a
prediction was wrong."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.journey import RequestFacts
from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.outlook import Outlook
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.late_binding import Because, Bound
from pointsman_scheduler.domain.late_binding.slack import MARGIN, ClassShares, place_by_slack
from pointsman_scheduler.domain.late_binding.unbound import Unbound
from pointsman_scheduler.domain.lateness import LONGEST_RETRY_S, PROBE_EVERY_S, refuse_late
from pointsman_scheduler.domain.outcome import Postponed
from pointsman_testing.one_engine import OneEngine, teach_passes


def facts(tokens: int, ttft_ms: float, level: str = "chat", weight: float = 1.0) -> RequestFacts:
    return RequestFacts(
        api="", stream=True, prompt_tokens=tokens, slo_ttft_ms=ttft_ms, slo_class=level, slo_late="refuse",
        slo_weight=weight,
    )  # fmt: skip


def waiting(jobs: Sequence[tuple[int, float]], engines: int) -> list[Unbound]:
    made: list[Unbound] = []
    for number, (tokens, ttft_ms) in enumerate(jobs):
        request = ScheduleRequest(request_id=str(number), facts=facts(tokens, ttft_ms))
        each = Unbound(request=request, since=0.0, rows=None, row=0, uses=0.0, uncached=float(tokens), latest=ttft_ms)
        each.match(np.zeros(engines))
        made.append(each)
    return made


def outlook(engines: int) -> Outlook:
    estimator = DelayEstimator(8192, 16.0)
    teach_passes(estimator.model)
    estimator.lay_out([(life, 1e9) for life in range(engines)])
    return Outlook(estimator, 0.0)


def done_at(view: Outlook, jobs: Sequence[Unbound]) -> list[float]:
    """When each would be computed, one after the other on one engine."""
    totals = itertools.accumulate([float(each.prompt) for each in jobs])
    return [view.rates.passes_ms(total, view.budget) for total in totals]


JOBS = st.lists(st.tuples(st.integers(200, 8000), st.floats(20.0, 600.0)), min_size=1, max_size=7)


@pytest.mark.requirement("SLO-4")
@settings(max_examples=30, deadline=None)
@given(JOBS)
def test_on_one_engine_those_in_time_are_in_time_and_no_larger_set_is(jobs: list[tuple[int, float]]) -> None:
    view, all_of_them = outlook(1), waiting(jobs, 1)
    place_by_slack(all_of_them, view, 0.0, {})
    in_time = sorted((each for each in all_of_them if not each.left_out), key=lambda each: each.latest)
    assert all(at <= each.latest for at, each in zip(done_at(view, in_time), in_time, strict=True))
    for more in itertools.combinations(sorted(all_of_them, key=lambda each: each.latest), len(in_time) + 1):
        ends = zip(done_at(view, more), more, strict=True)
        assert any(at * (1.0 + MARGIN) > each.latest for at, each in ends), "more requests could have been in time"


@settings(max_examples=30, deadline=None)
@given(JOBS, st.integers(2, 3))
def test_on_more_engines_no_fewer_are_in_time_than_on_one(jobs: list[tuple[int, float]], engines: int) -> None:
    one, several = waiting(jobs, 1), waiting(jobs, engines)
    place_by_slack(one, outlook(1), 0.0, {})
    place_by_slack(several, outlook(engines), 0.0, {})
    assert sum(each.left_out for each in several) <= sum(each.left_out for each in one)


@pytest.mark.requirement("SLO-4")
@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.tuples(st.floats(0.1, 10), st.integers(0, 10**6)), min_size=2))
def test_only_a_class_below_its_weight_s_share_is_lifted(got: dict[str, tuple[float, int]]) -> None:
    shares = ClassShares()
    present: list[Unbound] = []
    for name, (weight, tokens) in got.items():
        request = ScheduleRequest(request_id=name, facts=facts(max(1, tokens), 1.0, name, weight))
        each = Unbound(request=request, since=0.0, rows=None, row=0, uses=0.0, uncached=float(tokens), latest=1.0)
        present.append(each)
        shares.count_tokens(each, 0.0)
    whole, total = sum(weight for weight, _ in got.values()), sum(tokens for _, tokens in got.values())
    lifts = shares.compute_lifts(present)
    for name, (weight, tokens) in got.items():
        assert (lifts[name] > 1.0) == (max(1.0, tokens) < weight / whole * total)
        assert lifts[name] >= 1.0


class Engine(OneEngine):
    """One engine that keeps the answers and refusals of its requests."""

    def __init__(self, believed_slower: float = 1.0, ttl: str = "20s") -> None:
        super().__init__({}, believed_slower, ttl)
        self.came: dict[str, float] = {}
        self.first: dict[str, float] = {}
        """When the first token of each came, in seconds."""
        self.refused: dict[str, float] = {}
        """The predicted milliseconds of each one refused."""
        self.tokens: dict[str, int] = {}
        self.expired: dict[str, float] = {}
        """When each one was refused that had waited too long, in seconds."""

    def offer(self, tokens: int, ttft_ms: float, level: str = "chat", late: str = "refuse") -> None:
        request = self.bench.request(
            prompt_tokens=tokens, slo_ttft_ms=ttft_ms, slo_class=level, slo_late=late, max_output_tokens=1
        )
        self.came[request.request_id] = self.bench.now
        if not isinstance(self.bench.pool.decide(request, self.bench.now, 1, self.bench.policy), Postponed):
            self.sent.append(request)
        self.work()

    def take_bound(self, bound: Bound) -> None:
        if bound.because is Because.LATE:
            self.refused[bound.request.request_id] = bound.predicted_ms
        elif bound.because is Because.EXPIRED:
            self.expired[bound.request.request_id] = self.bench.now
        else:
            super().take_bound(bound)

    def note_answer(self, request: ScheduleRequest, at: float) -> None:
        self.first[request.request_id] = at
        level = request.facts.slo_class
        self.tokens[level] = self.tokens.get(level, 0) + request.facts.prompt_tokens


ARRIVALS = st.lists(
    st.tuples(st.integers(100, 6000), st.floats(0.0, 90.0), st.floats(60.0, 900.0)), min_size=3, max_size=40
)


@pytest.mark.requirement("SLO-2")
@settings(max_examples=25, deadline=None)
@given(ARRIVALS)
def test_each_request_is_answered_or_refused_once_and_a_refused_one_was_predicted_late(
    arrivals: list[tuple[int, float, float]],
) -> None:
    engine = Engine()
    promised: dict[str, float] = {}
    for tokens, gap_ms, ttft_ms in arrivals:
        engine.run(engine.bench.now + gap_ms / 1000.0)
        engine.offer(tokens, ttft_ms)
        promised[next(reversed(engine.came))] = ttft_ms
    engine.run(math.inf)
    assert engine.first.keys() | engine.refused.keys() == promised.keys()
    assert not engine.first.keys() & engine.refused.keys()
    assert all(predicted > promised[name] for name, predicted in engine.refused.items())


@pytest.mark.requirement("SLO-2")
@settings(max_examples=25, deadline=None)
@given(ARRIVALS)
def test_a_request_that_is_served_late_is_refused_only_once_it_has_waited_as_long_as_any_may(
    arrivals: list[tuple[int, float, float]],
) -> None:
    engine = Engine(ttl="1s")
    due: dict[str, float] = {}
    for tokens, gap_ms, ttft_ms in arrivals:
        engine.run(engine.bench.now + gap_ms / 1000.0)
        engine.offer(tokens, ttft_ms, late="serve")
        due[next(reversed(engine.came))] = engine.bench.now + ttft_ms / 1000.0
    engine.run(math.inf)
    assert not engine.refused
    assert engine.first.keys() | engine.expired.keys() == due.keys()
    assert not engine.first.keys() & engine.expired.keys()
    for name, at in engine.expired.items():
        assert at >= engine.came[name] + 1.0
        assert at > due[name]


def test_a_pool_is_overfull_while_as_many_requests_as_engines_would_be_late() -> None:
    engine = Engine()
    binder = engine.bench.pool.binder
    for _ in range(2):
        engine.offer(5000, 300.0, late="serve")  # 115 ms each
    engine.run(0.06 + engine.bench.now)
    assert not binder.is_overfull
    for _ in range(4):
        engine.offer(5000, 300.0, late="serve")
    engine.run(0.06 + engine.bench.now)
    assert binder.is_overfull
    engine.run(math.inf)
    assert len(engine.first) == 6
    assert not binder.is_overfull


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(100, 4000), min_size=3, max_size=20))
def test_nothing_is_refused_where_each_request_finds_a_free_engine(lengths: list[int]) -> None:
    engine = Engine()
    for tokens in lengths:
        engine.run(engine.bench.now + 0.2)
        engine.offer(tokens, 150.0)
    engine.run(math.inf)
    assert not engine.refused


@pytest.mark.requirement("SLO-5")
@pytest.mark.parametrize("wrong", [20.0])
def test_a_model_that_believes_its_engine_too_slow_is_tested_until_it_is_right_again(wrong: float) -> None:
    engine = Engine(believed_slower=wrong)
    dice = np.random.default_rng(2)
    refused_at_end = 0
    for number in range(900):
        engine.run(engine.bench.now + 0.1)
        before = len(engine.refused)
        engine.offer(int(dice.integers(500, 3000)), 120.0)
        if number >= 800:
            refused_at_end += len(engine.refused) - before
    engine.run(math.inf)
    firsts = sorted(engine.first.values())
    gaps = [later - earlier for earlier, later in itertools.pairwise(firsts)]
    assert max(gaps) < 2.0 * PROBE_EVERY_S
    assert refused_at_end <= 5


@pytest.mark.requirement("SLO-4")
def test_a_class_of_long_prompts_gets_its_share_of_the_engine_under_overload() -> None:
    engine = Engine()
    dice = np.random.default_rng(3)
    for _ in range(400):
        engine.run(engine.bench.now + 0.05)
        engine.offer(int(dice.integers(500, 1500)), 400.0, "short")
        engine.offer(int(dice.integers(3000, 5000)), 400.0, "long")
    engine.run(math.inf)
    # Both ask for more than half of the engine, or the short ones for less: then the long ones get the rest.
    share = engine.tokens["long"] / sum(engine.tokens.values())
    assert share > 0.4
    assert engine.tokens["short"] / sum(engine.tokens.values()) > 0.3


@pytest.mark.parametrize(("predicted_ms", "after_s"), [(900.0, 1.0), (4700.0, 4.0), (1e6, LONGEST_RETRY_S)])
def test_retry_after_is_when_the_pool_is_predicted_to_be_in_time_and_never_long(
    predicted_ms: float, after_s: float
) -> None:
    refusal = refuse_late(facts(100, 800.0), predicted_ms)
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (429, "slo_unattainable", after_s)
