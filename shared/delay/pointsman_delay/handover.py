"""One request on two engines: how long a prompt's KV cache takes from one to the other, learnt for each pair, and
whether that pays against one engine that does all of it."""

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from pointsman_contracts.scheduling import LegsForecast
from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.few_delays import delays
from pointsman_delay.formula import EngineDelay, Terms, stand

_BASE_MS: Final = 5.0
_TOKEN_MS: Final = 0.005
"""Priors: 131 KB of KV cache a token (32 layers, 8 KV heads of 128 values of 2 bytes) at 25 GB/s."""
_GAIN: Final = 0.05
_PAIR_GAIN: Final = 0.2
_MOST_PAIRS: Final = 4096
_LONGEST_MS: Final = 60_000.0
_FARTHEST: Final = 4.0
"""The most by which the logarithm of observed over expected counts: one observation moves a pair by no more."""

Pair = tuple[int, int]
"""Lives of the engine that computes the prompt and of the one that answers."""


class Handovers:
    """The time from the end of the first leg until the answering engine can decode, less its own step. One line for the
    pool, `base + tokens * rate`, and a factor for each pair: links differ, and few pairs hand over many prompts."""

    def __init__(self) -> None:
        self.observations = 0
        self._base = _BASE_MS
        self._rate = _TOKEN_MS
        self._factors: OrderedDict[Pair, float] = OrderedDict()

    def predict_ms(self, pair: Pair, tokens: float) -> float:
        """Milliseconds for `tokens` prompt tokens."""
        return (self._base + self._rate * tokens) * self._factors.get(pair, 1.0)

    def learn_handover(self, pair: Pair, tokens: float, took_ms: float) -> None:
        """One handover. A time that can't be is ignored: an edge's clock may have been set."""
        if not 0.0 <= took_ms <= _LONGEST_MS or tokens <= 0.0:
            return
        self.observations += 1
        expected = self._base + self._rate * tokens
        gain = max(_GAIN, 1.0 / (self.observations + 1))
        # Both parts of the line change in proportion: which of them was wrong isn't known from one handover.
        change = math.exp(gain * _log_ratio(took_ms, expected))
        self._base *= change
        self._rate *= change
        factor = self._factors.pop(pair, 1.0)
        own = _log_ratio(took_ms, (self._base + self._rate * tokens) * factor)
        self._factors[pair] = factor * math.exp(_PAIR_GAIN * own)
        if len(self._factors) > _MOST_PAIRS:
            self._factors.popitem(last=False)


def _log_ratio(observed: float, expected: float) -> float:
    return max(-_FARTHEST, min(_FARTHEST, math.log(max(observed, 0.1) / max(expected, 0.1))))


class LegPrompt(NamedTuple):
    """The request's prompt, in tokens."""

    tokens: int
    worker: str
    """The worker that would compute it."""
    held_there: float
    """Those that this worker holds."""
    held_here: float
    """Those that the answering engine holds: they aren't handed over."""


class Weights(NamedTuple):
    """The comparison's inputs beside the formula's terms."""

    handover_ms: float
    """Until the prompt's KV cache is at the answering engine."""
    pause: float
    """How much worse the same wait within an answer is as one pause than spread over its tokens."""


def weigh(
    estimator: DelayEstimator, rows: tuple[int, int], prompt: LegPrompt, terms: Terms, weights: Weights
) -> LegsForecast:
    """The costs with the prompt computed at row `rows[0]` of the estimator and the answer at `rows[1]`, and with both
    there. By the figures of the estimator's last call.

    On two engines, the first one's cost is the formula's for an answer of no tokens; the second one's is that of a
    request that joins the batch as a decoding sequence: it adds no prompt, and waits for the first engine, the
    handover and a step. On one engine, the answers that run there pause while it computes the prompt.
    """
    first, second = (_standing(estimator, row) for row in rows)
    most = prompt.tokens - 1.0
    there, here = min(prompt.held_there, most), min(prompt.held_here, most)
    [alone] = delays([second], [here], prompt.tokens, 0.0, terms)
    # The formula doesn't know of the requests that wait for their prompts from elsewhere, and then for this one.
    paused = (weights.pause - 1.0) * estimator.figures_of(rows[1]).decoding
    paused += terms.first_token * estimator.awaiting(rows[1])
    alone += paused * _prompt_ms(prompt.tokens - here, here, terms) * second.speed
    # The first engine's requests have no answers to slow down, and this one leaves it with its prompt.
    [prefill] = delays([first], [there], prompt.tokens, 0.0, terms._replace(output=0.0, others=0.0, slows_each=0.0))
    prefill_ms = _first_token_ms(first, prompt.tokens - there, there, terms)
    busy_ms = (max(0.0, second.free_at - terms.now) + second.before) * second.speed
    step_ms = (second.turn + second.step + terms.own_step) * second.speed
    step_ms += max(0.0, busy_ms - prefill_ms - weights.handover_ms)
    stall_ms = max(0.0, terms.prompt_and_answer - second.room) * second.stall * terms.others * second.speed
    own = terms.output * (terms.own_step + second.company) + terms.slows_each * second.slowed
    apart = prefill + terms.first_token * (weights.handover_ms + step_ms + stall_ms) + own * second.speed
    return LegsForecast(
        worker=prompt.worker,
        alone=round(alone, 3),
        apart=round(apart, 3),
        alone_ttft_ms=round(_first_token_ms(second, prompt.tokens - here, here, terms), 3),
        apart_ttft_ms=round(prefill_ms + weights.handover_ms + step_ms + stall_ms, 3),
        prefill_ms=round(prefill_ms, 3),
        handover_ms=round(weights.handover_ms, 3),
    )


def _standing(estimator: DelayEstimator, row: int) -> EngineDelay[float]:
    return stand(estimator.figures_of(row), float(estimator.batch_tokens), estimator.model.rates)


def _first_token_ms(at: EngineDelay[float], uncached: float, held: float, terms: Terms) -> float:
    """The formula's `ttft`, alone."""
    filled, rest = divmod(at.waiting + uncached, terms.budget)
    steps = (filled + (rest > 0.0)) * at.step
    ahead = max(0.0, at.free_at - terms.now) + at.turn + steps
    return (ahead + at.before + _prompt_ms(uncached, held, terms)) * at.speed


def _prompt_ms(uncached: float, held: float, terms: Terms) -> float:
    """The passes of these prompt tokens."""
    filled, rest = divmod(uncached, terms.budget)
    took = (
        rest * (terms.linear + terms.square * rest) + filled * terms.full_pass + terms.prefill * (filled + (rest > 0))
    )
    return took + terms.pairs * uncached * (held + 0.5 * uncached)
