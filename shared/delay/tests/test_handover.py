"""When two engines for one request cost less than one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.scheduling import LegsForecast
from pointsman_delay.handover import Handovers, LegPrompt
from pointsman_delay.pass_model import PassModel
from pointsman_delay.pass_size import PassSizeSearch

FIRST, SECOND = 0, 1
ENGINE = np.array([16.5, 15.2, 0.42, 0.0, 5.7, 0.1, 50.0])
LONG = 8000


def pair() -> PassSizeSearch:
    """Two engines whose times are known: one for prompts, one for answers."""
    search = PassSizeSearch(8192, 16.0)
    model, rng = PassModel(), np.random.default_rng(0)
    for _ in range(400):
        tokens, batch = rng.uniform(0.0, 8.0), float(rng.integers(1, 50))
        passed = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, batch * rng.uniform(0.0, 0.02)])
        model.learn_pass(passed, float(ENGINE @ passed), 5.0)
    vars(search.best.model).update(vars(model))
    search.lay_out([(FIRST, 1e6), (SECOND, 1e6)])
    return search


def decoding(search: PassSizeSearch, count: int, at: float = 0.0) -> None:
    """The second engine answers so many requests."""
    for number in range(count):
        search.sent(SECOND, ("answer", number), at, 500, 499)
        search.started(("answer", number), at + 1.0)


def weighed(search: PassSizeSearch, now: float = 10.0, tokens: int = LONG, pause: float = 1.0) -> LegsForecast:
    prompt = LegPrompt(tokens, "p", 0.0, 0.0)
    return search.weigh((0, 1), (FIRST, SECOND), prompt, now, max_output=None, pause=pause)


def test_an_engine_with_nothing_to_do_computes_its_prompts_itself() -> None:
    forecast = weighed(pair())
    assert not forecast.pays
    assert forecast.alone_ttft_ms < forecast.apart_ttft_ms


def test_a_prompt_that_many_answers_would_wait_for_is_computed_elsewhere() -> None:
    search = pair()
    decoding(search, 30)
    assert weighed(search).pays


def test_a_queue_at_the_engine_for_prompts_sends_the_next_one_elsewhere() -> None:
    search = pair()
    decoding(search, 30)
    for number in range(20):
        search.sent(FIRST, ("prompt", number), 5.0, LONG, 0)
    assert not weighed(search).pays


@given(st.integers(0, 40), st.integers(64, 30_000), st.floats(1.0, 10.0))
def test_answers_that_run_and_pauses_that_count_more_never_speak_for_one_engine(
    count: int, tokens: int, pause: float
) -> None:
    idle, busy = pair(), pair()
    decoding(busy, count)
    here, there, heavy = weighed(idle, tokens=tokens), weighed(busy, tokens=tokens), weighed(busy, 10.0, tokens, pause)
    gain = there.alone - there.apart
    assert gain >= here.alone - here.apart - 1.0
    assert heavy.alone - heavy.apart >= gain - 1e-6


@given(st.integers(1, 20_000), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_forecast_is_made_of_its_parts(tokens: int, there: float, here: float) -> None:
    forecast = pair().weigh(
        (0, 1), (FIRST, SECOND), LegPrompt(tokens, "p", there * tokens, here * tokens), 0.0, max_output=10, pause=2.0
    )
    figures = (forecast.alone, forecast.apart, forecast.alone_ttft_ms, forecast.apart_ttft_ms)
    assert all(math.isfinite(figure) for figure in figures)
    assert forecast.apart_ttft_ms >= forecast.prefill_ms + forecast.handover_ms


def test_a_request_that_waits_for_its_prompt_teaches_nothing_of_a_pass() -> None:
    search = pair()
    before = search.best.model.observations
    for number in range(50):
        at = 1000.0 * number
        search.sent(SECOND, (number, ""), at, LONG, LONG - 1)
        search.sent(FIRST, (number, "prefill"), at, LONG, 0)
        search.await_prompt((number, ""), at, LONG)
        assert search.best.awaiting(1) == 1
        prompt_ms = 16.5 + 15.2 * 8 + 0.42 * 64
        began = at + prompt_ms + 60.0
        search.handed_over((number, "prefill"), (number, ""), at + prompt_ms, began)
        search.ended((number, "prefill"), began, None)
        search.started((number, ""), began)
        search.ended((number, ""), began + 500.0, 50)
        assert search.best.awaiting(1) == 0
    # Prompts and answers were learnt from; a first token that came 225 ms after one token was sent would be an outlier.
    assert search.best.model.observations > before
    assert search.best.model.relative_error < 0.2
    handover_ms = search.handovers.predict_ms((FIRST, SECOND), LONG)
    assert handover_ms == pytest.approx(54.0, rel=0.1)
    assert weighed(search, 60_000.0).handover_ms == pytest.approx(handover_ms, abs=0.001)


@given(st.floats(1.0, 50.0), st.floats(1e-4, 0.1), st.integers(0, 2**32))
def test_the_pools_links_are_learnt_within_a_factor_of_two(base: float, rate: float, seed: int) -> None:
    handovers, rng = Handovers(), np.random.default_rng(seed)
    for number in range(400):
        tokens = int(rng.integers(2000, 16_000))
        handovers.learn_handover((number % 3, 9), tokens, (base + rate * tokens) * rng.normal(1.0, 0.05))
    assert 0.5 < handovers.predict_ms((0, 9), 8000) / (base + rate * 8000) < 2.0


def test_a_slow_link_between_two_engines_is_told_from_the_others() -> None:
    handovers = Handovers()
    for number in range(200):
        handovers.learn_handover((number % 4, 9), 8000, 400.0 if number % 4 == 3 else 40.0)
    assert handovers.predict_ms((3, 9), 8000) > 3 * handovers.predict_ms((0, 9), 8000)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_times_that_cannot_be_are_not_learnt(times: list[float]) -> None:
    handovers = Handovers()
    for took_ms in times:
        handovers.learn_handover((0, 1), 8000, took_ms)
        assert 0.0 < handovers.predict_ms((0, 1), 8000) < 1e6
