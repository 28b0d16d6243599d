"""The time that one more request would take, and that asking for it changes nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.foresight import EngineSight, foresee

ENGINES = (EngineSight(1, 1e6, 0.0), EngineSight(2, 1e6, 0.0))


def taught() -> DelayEstimator:
    """Two engines whose passes take 20 ms and 0.02 ms a token."""
    estimator = DelayEstimator(8192, 16.0)
    dice = np.random.default_rng(1)
    for _ in range(200):
        tokens = float(dice.integers(100, 8000)) * 1e-3
        batch = float(dice.integers(1, 50))
        features = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, 0.0])
        estimator.model.learn_pass(features, 20.0 + 20.0 * tokens + 10.0 + 0.1 * batch, 1.0)
    estimator.lay_out([(1, 1e6), (2, 1e6)])
    return estimator


def test_nothing_is_foreseen_before_the_pool_is_known() -> None:
    estimator = DelayEstimator(8192, 16.0)
    assert foresee(estimator, ENGINES, 1000, 100.0, 0.0) is None


def test_a_prompt_takes_its_pass_and_its_tokens_then_a_step_for_each_token_of_the_answer() -> None:
    estimator = taught()
    assert estimator.model.is_trusted
    found = foresee(estimator, ENGINES, 1000, 100.0, 0.0)
    assert found is not None
    _, times = found
    assert 35 < times.first_token_ms < 45
    assert 100 * 7 < times.answer_ms - times.first_token_ms < 100 * 12
    assert times.others_ms == 0.0


def test_the_engine_with_the_prompt_or_without_a_queue_is_foreseen() -> None:
    estimator = taught()
    assert estimator.model.is_trusted
    held = (ENGINES[0], ENGINES[1]._replace(held=4000.0))
    found = foresee(estimator, held, 4000, 10.0, 0.0)
    assert found is not None
    assert found[0] == 1
    for number in range(6):
        estimator.sent(2, number, 0.0, 8000, 0)
    crowded = foresee(estimator, held, 4000, 10.0, 1.0)
    assert crowded is not None
    assert crowded[0] == 0


def test_a_request_that_joins_others_makes_them_wait() -> None:
    estimator = taught()
    assert estimator.model.is_trusted
    for number in range(8):
        estimator.sent(1, number, 0.0, 1000, 0)
    found = foresee(estimator, ENGINES[:1], 4000, 10.0, 1.0)
    assert found is not None
    assert found[1].others_ms > 8 * 50


_STEP = st.tuples(st.sampled_from(("sent", "started", "ended")), st.integers(0, 7), st.integers(1, 200))


@settings(max_examples=60)
@given(steps=st.lists(_STEP, max_size=40), asked=st.sets(st.integers(0, 40)))
def test_costs_are_the_same_to_the_last_bit_whether_or_not_anything_was_asked(
    steps: list[tuple[str, int, int]], asked: set[int]
) -> None:
    quiet, curious = taught(), taught()
    assert quiet.model.is_trusted
    assert curious.model.is_trusted
    now = 0.0
    for number, (what, key, gap) in enumerate(steps):
        now += gap
        if number in asked:
            foresee(curious, ENGINES, 700 + key, 50.0, now)
        now += gap
        for estimator in (quiet, curious):
            if what == "sent":
                estimator.sent(1 + key % 2, key, now, 500 + 300 * key, 100, told=bool(key % 3))
            elif what == "started":
                estimator.started(key, now)
            else:
                estimator.ended(key, now, 20 + key)
        same = [each.costs(2000, np.array([0.0, 640.0]), now + 1.0, None, 5).tolist() for each in (quiet, curious)]
        assert same[0] == same[1]
