"""Engines whose answers are promised a time between tokens spend no more of their time on prompts than that leaves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_delay import PassSizeSearch
from pointsman_delay.token_pace import LEAST_SHARE, MOST_OWED_MS, TokenPace, TokenPaces, prompt_share

PROMPTS = st.lists(st.tuples(st.floats(0.0, 500.0), st.floats(1.0, 400.0)), min_size=1, max_size=30)


@given(PROMPTS, st.floats(1.0, 60.0), st.floats(5.0, 100.0))
def test_prompts_sent_to_engines_that_have_caught_up_take_their_share_and_one_prompt_more(
    prompts: list[tuple[float, float]], step: float, itl: float
) -> None:
    pace, now, sent = TokenPace(0.0), 0.0, 0.0
    pace.note_sent("answer", itl, 0.0, now, step)
    for number, (gap, prompt_ms) in enumerate(prompts):
        now += gap
        now += pace.owed_ms(now, step)
        pace.note_sent(number, None, prompt_ms, now, step)
        assert sent <= pace.prompts_share(step) * now * (1.0 + 1e-9) + 1e-6
        sent += prompt_ms


@given(st.lists(st.floats(0.0, 1e5), max_size=20), st.floats(1.0, 60.0), st.floats(5.0, 100.0))
def test_no_engine_makes_up_for_prompts_without_end(prompts: list[float], step: float, itl: float) -> None:
    pace = TokenPace(0.0)
    pace.note_sent("answer", itl, 0.0, 0.0, step)
    for number, prompt_ms in enumerate(prompts):
        pace.note_sent(number, None, prompt_ms, 0.0, step)
        assert pace.owed_ms(0.0, step) <= MOST_OWED_MS / LEAST_SHARE * (1.0 + 1e-9)


@given(PROMPTS, st.floats(1.0, 60.0), st.floats(5.0, 100.0))
def test_a_predicted_time_between_tokens_is_a_step_at_least_and_finite(
    prompts: list[tuple[float, float]], step: float, itl: float
) -> None:
    pace, now = TokenPace(0.0), 0.0
    pace.note_sent("answer", itl, 0.0, now, step)
    for number, (gap, prompt_ms) in enumerate(prompts):
        now += gap
        pace.note_sent(number, None, prompt_ms, now, step)
        assert step <= pace.token_ms(now, step) < math.inf


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.none() | st.floats(1.0, 100.0))))
def test_an_engine_is_held_to_the_shortest_promise_of_its_open_answers_alone(
    changes: list[tuple[int, int, float | None]],
) -> None:
    paces, promised = TokenPaces(), dict[int, dict[int, float]]()
    for life, key, itl in changes:
        name = 10 * life + key
        if name in promised.get(life, {}):
            paces.drop_request(name)
            del promised[life][name]
            continue
        paces.note_sent(life=life, key=name, itl=itl, prompt_ms=5.0, now=0.0, step=10.0)
        if itl is not None:
            promised.setdefault(life, {})[name] = itl
    paces.drop_request("unknown")
    for life in range(4):
        pace, expected = paces.of_engine(life), promised.get(life)
        assert (None if pace is None else pace.tightest) == (min(expected.values()) if expected else None)
    assert bool(paces) == any(promised.values())


def test_a_promise_that_no_engine_can_keep_slows_no_prompt() -> None:
    search = PassSizeSearch(8192, 16.0)
    search.lay_out([(1, 1e6)])
    step = search.step_with(1, 1000, alone=True)
    assert prompt_share(step, step) < LEAST_SHARE
    search.pace_prompts(1, "a", step, 1000, 1000, 0.0)
    assert search.list_paces() == []
    search.pace_prompts(1, "b", 4.0 * step, 1000, 1000, 0.0)
    (pace,) = search.list_paces()
    assert pace is not None
    assert pace.tightest == pytest.approx(4.0 * step)


def test_first_tokens_alone_show_no_decode_step_and_answers_do() -> None:
    search = PassSizeSearch(8192, 16.0)
    search.lay_out([(1, 1e6)])
    model, now = search.best.model, 0.0
    for number in range(60):
        prompt, output = 500 + 100 * (number % 20), 8 if number < 50 else 40
        search.sent(1, number, now, prompt, 0)
        now += 20.0 + 0.1 * prompt
        search.started(number, now)
        assert not model.knows_decode or number > 50
        now += 100.0 * (output - 1)
        search.ended(number, now, output)
    assert model.is_trusted
    assert model.knows_decode
    assert search.step_with(1) == pytest.approx(100.0, rel=0.1)
