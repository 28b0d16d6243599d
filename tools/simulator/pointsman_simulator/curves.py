"""Two curves of a replay: times to the first token by prompt length, and slowdowns by percentile."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Outcomes

PERCENTILES: Final = (1, 5, *range(10, 91, 5), 92, 94, 96, 97, 98, 98.5, 99, 99.25, 99.5, 99.75, 99.9)
_LEAST_TOKENS: Final = 64
_EACH_OCTAVE: Final = 2
"""Lengths for each doubling of the prompt."""
_FEW: Final = 10
"""A length with fewer requests has no mean worth showing."""


@dataclass(frozen=True, slots=True)
class LengthMean:
    """The requests with prompts of about one length."""

    tokens: float
    """Mean length of the prompts."""
    requests: int
    ttft_ms: float
    """Mean."""


def by_length(outcomes: Outcomes) -> tuple[LengthMean, ...]:
    """Mean time to the first token by prompt length, shortest first."""
    tokens, ttft = _tokens(outcomes), _ttft(outcomes)
    steps = np.floor(np.log2(np.maximum(tokens, _LEAST_TOKENS) / _LEAST_TOKENS) * _EACH_OCTAVE)
    means: list[LengthMean] = []
    for step in np.unique(steps).tolist():
        here = steps == step
        if (count := int(np.count_nonzero(here))) >= _FEW:
            means.append(LengthMean(float(tokens[here].mean()), count, float(ttft[here].mean())))
    return tuple(means)


def slowdowns(outcomes: Outcomes, engine: EngineConfig) -> tuple[float, ...]:
    """Each request's time to the first token, divided by the time that its whole prompt takes alone on an idle engine;
    at `PERCENTILES`. A prompt that is found in a cache may be below 1."""
    alone = np.array([alone_ms(request.prompt_tokens, engine) for request in outcomes.requests])
    return tuple(np.percentile(_ttft(outcomes) / alone, PERCENTILES).tolist())


def alone_ms(tokens: int, engine: EngineConfig) -> float:
    """How long a prompt takes on an idle engine with an empty cache."""
    whole, rest = divmod(tokens, engine.max_num_batched_tokens)
    took = whole * engine.timing.prefill_ms(engine.max_num_batched_tokens)
    return took + (engine.timing.prefill_ms(rest) if rest else 0.0)


def _ttft(outcomes: Outcomes) -> Floats:
    return np.array([request.first_token_at for request in outcomes.requests]) - np.array(outcomes.arrived)


def _tokens(outcomes: Outcomes) -> Floats:
    return np.array([float(request.prompt_tokens) for request in outcomes.requests])
