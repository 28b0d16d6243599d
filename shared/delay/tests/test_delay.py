"""The estimator learns an engine's times, and prefers the choice that delays all requests least."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_delay import DelayEstimator
from pointsman_delay.pass_model import FEATURES, PassModel
from pointsman_plugins.scheduling.arrays import FEW

ENGINE = np.array([16.5, 15.2, 0.42, 0.0, 5.7, 0.1, 50.0])
"""Milliseconds, as `pass_model` orders its features."""


def taught(seed: int = 0, engine: np.ndarray[tuple[int], np.dtype[np.float64]] = ENGINE) -> PassModel:
    model, rng = PassModel(), np.random.default_rng(seed)
    for _ in range(400):
        tokens, batch = rng.uniform(0.0, 8.0), float(rng.integers(1, 50))
        passed = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, batch * rng.uniform(0.0, 0.02)])
        took = float(engine @ passed)
        model.learn_pass(passed, took * rng.normal(1.0, 0.03), 5.0)
    return model


def estimator(workers: int, model: PassModel | None = None) -> DelayEstimator:
    made = DelayEstimator(batch_tokens=8192, first_token_weight=16.0)
    if model is not None:
        vars(made.model).update(vars(model))
    made.lay_out([(life, 1_000_000.0) for life in range(workers)])
    return made


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_an_engine_of_any_speed_is_learnt_from_what_passed_the_edge(scale: float) -> None:
    model = taught(engine=ENGINE * scale)
    assert model.is_trusted
    for tokens, batch, context in ((1.0, 5.0, 0.05), (8.0, 30.0, 0.3), (0.1, 1.0, 0.01)):
        passed = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, context])
        assert model.predict_ms(passed) == pytest.approx(scale * float(ENGINE @ passed), rel=0.15)


@given(
    weights=st.lists(st.floats(-1e6, 1e6), min_size=FEATURES, max_size=FEATURES),
    features=st.tuples(*[st.floats(0, 1e9)] * FEATURES),
)
def test_a_pass_is_predicted_the_same_to_the_last_bit_with_and_without_an_array(
    weights: list[float], features: tuple[float, ...]
) -> None:
    model = PassModel()
    model.weights = np.array(weights)
    assert model.predict_pass_ms(features) == model.predict_ms(np.array(features))


def test_a_model_that_no_longer_predicts_loses_its_trust_and_learns_anew() -> None:
    model, rng = taught(), np.random.default_rng(1)
    assert model.is_trusted
    lost = False
    for _ in range(3000):
        tokens = rng.uniform(0.0, 8.0)
        passed = np.array([1.0, tokens, tokens**2, 0.0, 0.0, 0.0, 0.0])
        model.learn_pass(passed, 6.0 * float(ENGINE @ passed), 5.0)
        lost |= not model.is_trusted
    assert lost
    assert model.is_trusted


def test_an_engine_whose_times_are_known_after_those_of_others_is_learnt_from_too() -> None:
    engines, rng = estimator(2), np.random.default_rng(3)
    for number in range(900):
        # The end of the slow engine's pass is sure when its next request comes, after the other one's.
        worker, begins, tokens = number % 2, number * 100_000.0, int(rng.uniform(300, 8000))
        passed = np.array([1.0, tokens * 1e-3, tokens**2 * 1e-6, 0.0, 0.0, 0.0, 0.0])
        slower = 3.0 if worker == 0 and number > 600 else 1.0
        engines.sent(worker, number, begins, tokens, 0)
        took = slower * float(ENGINE @ passed)
        engines.started(number, begins + took)
        engines.ended(number, begins + took + (1.0 if worker == 0 else 500.0), 1)
    assert engines.speed_of(0) > 2.0 * engines.speed_of(1)


@given(st.lists(st.integers(0, 39), max_size=3, unique=True), st.integers(0, 100))
def test_a_few_first_tokens_that_came_far_too_early_dont_spoil_what_is_learnt(early: list[int], seed: int) -> None:
    engines, rng = estimator(1), np.random.default_rng(seed)
    for number in range(100):
        begins, tokens = number * 100_000.0, int(rng.uniform(300, 8000))
        passed = np.array([1.0, tokens * 1e-3, tokens**2 * 1e-6, 0.0, 0.0, 0.0, 0.0])
        took = 7.0 if number in early else 10.0 * float(ENGINE @ passed)
        engines.sent(0, number, begins, tokens, 0)
        engines.started(number, begins + took)
        engines.ended(number, begins + took + 50.0, 1)
    assert engines.model.is_trusted
    for tokens in (1.0, 4.0, 8.0):
        passed = np.array([1.0, tokens, tokens**2, 0.0, 0.0, 0.0, 0.0])
        # At most 0.38 in 8,000 cases; 0.8 to 0.93 where such a time is believed.
        assert engines.model.predict_ms(passed) == pytest.approx(10.0 * float(ENGINE @ passed), rel=0.5)


@pytest.mark.parametrize("model", [None, taught()], ids=["before it is trusted", "once it is trusted"])
def test_a_shorter_queue_and_a_cached_prefix_cost_less(model: PassModel | None) -> None:
    engines = estimator(3, model)
    engines.sent(0, "busy", 0.0, 6000, 0)
    costs = engines.costs(4000, np.array([0.0, 0.0, 3000.0]), 0.0, None, prefix=7)
    assert costs[2] < costs[1] < costs[0]


@pytest.mark.requirement("S2-21")
def test_a_sent_request_counts_at_once() -> None:
    engines = estimator(2, taught())
    before = engines.costs(4000, np.zeros(2), 0.0, None, None)
    engines.sent(1, "a", 0.0, 4000, 0)
    after = engines.costs(4000, np.zeros(2), 0.0, None, None)
    assert after[1] > before[1]
    engines.ended("a", 1.0, None)
    assert engines.costs(4000, np.zeros(2), 1.0, None, None) == pytest.approx(before)


def test_answers_whose_beginning_is_not_reported_do_not_hold_up_the_shadow() -> None:
    """Only the end of an answer that isn't streamed is heard of."""
    engines = estimator(2, taught())
    for index in range(8):
        engines.sent(0, f"whole {index}", index * 2000.0, 6000, 0, told=False)
        engines.sent(1, f"streamed {index}", index * 2000.0, 6000, 0)
        engines.started(f"streamed {index}", index * 2000.0 + 1500.0)
    engines.costs(1000, np.zeros(2), 60_000.0, None, None)
    whole, streamed = engines._figures  # pyright: ignore[reportPrivateUsage] # what the cost is made of
    assert (whole.waiting, whole.queued, whole.decoding) == (0.0, 0.0, 8.0)
    assert (streamed.waiting, streamed.queued, streamed.decoding) == (0.0, 0.0, 8.0)


def test_a_request_that_is_gone_in_its_last_pass_holds_up_no_other() -> None:
    engines = estimator(1, taught())
    engines.sent(0, "gone", 0.0, 6000, 0)
    engines.sent(0, "next", 1.0, 6000, 0, told=False)
    engines.costs(1000, np.zeros(1), 10_000.0, None, None)
    engines.ended("gone", 10_000.0, None)
    engines.costs(1000, np.zeros(1), 60_000.0, None, None)
    (figures,) = engines._figures  # pyright: ignore[reportPrivateUsage] # what the cost is made of
    assert (figures.waiting, figures.queued, figures.decoding) == (0.0, 0.0, 1.0)


def test_the_predicted_rest_of_a_pass_does_not_outlive_its_last_request() -> None:
    engines = estimator(2, taught())
    engines.sent(0, "answered early", 0.0, 6000, 0, told=False)
    engines.costs(1000, np.zeros(2), 1.0, None, None)
    engines.ended("answered early", 2.0, 20)
    first, second = engines.costs(1000, np.zeros(2), 3.0, None, None)
    assert first == pytest.approx(second)


def test_few_workers_and_many_cost_alike() -> None:
    model, many = taught(), FEW + 4
    columns, numbers = estimator(many, model), estimator(FEW, model)
    rng = np.random.default_rng(3)
    for made in (columns, numbers):
        draw = np.random.default_rng(5)
        for index in range(40):
            key, now = f"r{index}", index * 10.0
            made.sent(int(draw.integers(FEW)), key, now, int(draw.integers(100, 20_000)), 0)
            if index % 3 == 0:
                made.started(f"r{index // 2}", now + 5.0)
    hit = rng.integers(0, 3000, many).astype(np.float64)
    hit[0] = 3000.0  # the longest is among both
    expected = columns.costs(5000, hit, 500.0, None, None)[:FEW].tolist()
    assert numbers.costs(5000, hit[:FEW], 500.0, None, None).tolist() == expected
    for made in (columns, numbers):
        ready = sum(made.ready(row, 500.0) for row in range(made.workers))
        assert 0 < made.count_ready(500.0) == ready < made.workers


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "sent untold", "started", "ended"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(1, 30_000),
    ),
    max_size=60,
)


@given(EVENTS)
def test_the_books_close_when_events_come_twice_late_or_never(events: list[tuple[str, int, int, int]]) -> None:
    engines = estimator(3, taught())
    now = 0.0
    for what, request, worker, size in events:
        now += 7.0
        match what:
            case "sent" | "sent untold":
                engines.sent(worker, str(request), now, size, size // 3, told=what == "sent")
            case "started":
                engines.started(str(request), now)
            case _:
                engines.ended(str(request), now, size % 400)
        costs = engines.costs(1000, np.zeros(3), now, 100, None)
        assert np.isfinite(costs).all()
        assert engines.count_ready(now) == sum(engines.ready(row, now) for row in range(3))
    for request in range(6):
        engines.ended(str(request), now + 1.0, None)
    engines.costs(1000, np.zeros(3), now + 1.0, 100, None)
    for figures in engines._figures:  # pyright: ignore[reportPrivateUsage] # the state that must be empty again
        assert (figures.waiting, figures.decoding, figures.queued) == (0.0, 0.0, 0.0)
        assert figures.context == pytest.approx(0.0, abs=1e-6)


def test_features_have_names_for_all() -> None:
    assert len(ENGINE) == FEATURES
    assert math.isfinite(PassModel().predict_ms(ENGINE))
