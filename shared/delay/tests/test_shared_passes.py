"""Requests that are sent together: first tokens tell which of them shared a pass, in any order and with jitter."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pointsman_delay import DelayEstimator

BATCH_TOKENS = 8192


def pass_ms(tokens: int) -> float:
    """How long this engine's passes take."""
    thousands = tokens * 1e-3
    return 16.5 + 15.2 * thousands + 0.42 * thousands**2


def taught(
    bursts: Sequence[Sequence[Sequence[int]]], jitter_ms: float, seed: int, slower: float = 1.0
) -> DelayEstimator:
    """An estimator that was told of these bursts, a second apart. A burst is passes, each with its prompts. The engine
    takes the prompts up in another order than they were sent in; the first tokens of a pass are reported in any order,
    within `jitter_ms` of each other. Every time but the jitter is `slower` times as long."""
    chance = random.Random(seed)
    made = DelayEstimator(batch_tokens=BATCH_TOKENS, first_token_weight=16.0)
    made.lay_out([(0, 1e9)])
    for number, passes in enumerate(bursts):
        begins = number * 1000.0 * slower
        reports: list[tuple[float, str]] = []
        sent: list[tuple[str, int]] = []
        ends = begins
        for place, prompts in enumerate(passes):
            ends += slower * pass_ms(sum(prompts))
            for prompt in prompts:
                key = f"{number} {place} {len(sent)}"
                sent.append((key, prompt))
                reports.append((ends + chance.uniform(0.0, jitter_ms), key))
        chance.shuffle(sent)
        for index, (key, prompt) in enumerate(sent):
            made.costs(prompt, np.zeros(1), begins + 0.3 * index, None, None)
            made.sent(0, key, begins + 0.3 * index, prompt, 0)
        for at, key in sorted(reports):
            made.started(key, at)
        for key, _ in sent:
            made.ended(key, ends + jitter_ms, 1)
    return made


def bursts(passes: int, prompts: int, seed: int, count: int = 200) -> list[list[list[int]]]:
    chance = random.Random(seed)
    most = BATCH_TOKENS // prompts
    return [
        [[chance.randint(100, most) for _ in range(chance.randint(1, prompts))] for _ in range(passes)]
        for _ in range(count)
    ]


@pytest.mark.parametrize("jitter_ms", [0.0, 2.0, 4.0])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_burst_of_short_prompts_is_learnt_from_in_the_passes_that_the_engine_made_of_it(
    passes: int, jitter_ms: float
) -> None:
    model = taught(bursts(passes, 4, seed=1), jitter_ms, seed=2).model
    assert model.is_trusted
    assert model.relative_error < 0.1
    for tokens in (500, 2000, 6000):
        seen = np.array([1.0, tokens * 1e-3, tokens**2 * 1e-6, 0.0, 0.0, 0.0, 0.0])
        assert model.predict_ms(seen) == pytest.approx(pass_ms(tokens), rel=0.15)


@pytest.mark.parametrize("jitter_ms", [8.0, 16.0])
def test_first_tokens_of_a_long_pass_that_a_busy_edge_reports_apart_are_one_observation(jitter_ms: float) -> None:
    model = taught([[[800, 1900, 3100]]] * 40, jitter_ms, seed=1, slower=10.0).model
    assert 39 <= model.observations <= 40
    seen = np.array([1.0, 5.8, 5.8**2, 0.0, 0.0, 0.0, 0.0])
    assert model.predict_ms(seen) == pytest.approx(10.0 * pass_ms(5800), rel=0.1)


def test_first_tokens_that_come_together_are_one_observation() -> None:
    model = taught([[[400, 500, 600]]] * 10, 3.0, seed=1).model
    assert 9 <= model.observations <= 10  # the last one is learnt from when no more first tokens can come


def test_a_prompt_whose_first_token_comes_a_pass_later_was_computed_in_that_pass() -> None:
    model = taught([[[400], [500], [600]]] * 10, 0.0, seed=1).model
    assert 27 <= model.observations <= 30


def taught_out_of_order(prompts_of_bursts: Sequence[Sequence[int]], seed: int) -> DelayEstimator:
    """An estimator that was told of these bursts, ten seconds apart, in another order than the engine got them in. The
    engine fills each of its passes, so that one may end within a prompt."""
    chance = random.Random(seed)
    made = DelayEstimator(batch_tokens=BATCH_TOKENS, first_token_weight=16.0)
    made.lay_out([(0, 1e9)])
    for number, prompts in enumerate(prompts_of_bursts):
        begins = number * 10_000.0
        ends, room, computed = begins, BATCH_TOKENS, 0
        finishing: list[str] = []
        reports: list[tuple[float, str]] = []
        for place, prompt in enumerate(prompts):
            left = prompt
            while left:
                taken = min(left, room - computed)
                computed, left = computed + taken, left - taken
                if not left:
                    finishing.append(f"{number} {place}")
                if computed == room or (not left and place == len(prompts) - 1):
                    ends += pass_ms(computed)
                    reports += [(ends, key) for key in finishing]
                    computed, finishing = 0, []
        sent = list(enumerate(prompts))
        chance.shuffle(sent)
        for place, prompt in sent:
            made.sent(0, f"{number} {place}", begins, prompt, 0)
        for at, key in reports:
            made.started(key, at)
        for place, _ in sent:
            made.ended(f"{number} {place}", ends, 1)
    return made


def test_passes_are_learnt_from_when_the_engine_got_long_prompts_in_another_order() -> None:
    chance = random.Random(3)
    many = [[chance.randint(200, 20_000) for _ in range(chance.randint(2, 5))] for _ in range(150)]
    model = taught_out_of_order(many, seed=4).model
    assert model.relative_error < 0.1
    for tokens in (500, 2000, 6000):
        seen = np.array([1.0, tokens * 1e-3, tokens**2 * 1e-6, 0.0, 0.0, 0.0, 0.0])
        assert model.predict_ms(seen) == pytest.approx(pass_ms(tokens), rel=0.1)
