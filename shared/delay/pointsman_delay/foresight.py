"""How long one more request would take in a pool now, at the engine where it delays all requests least.

A question, not a choice: it reads the shadows as they stand and changes nothing. Decisions of the pool, and their
replay, don't depend on whether it was asked.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.few_delays import delays
from pointsman_delay.formula import EngineDelay, EngineFigures, Terms, stand


class EngineSight(NamedTuple):
    """One engine that may take the request."""

    life: int
    capacity: float
    """Tokens that its KV cache has room for; infinite when unknown."""
    held: float
    """Prompt tokens that it holds."""
    planned: tuple[tuple[float, int], ...] = ()
    """The requests that wait elsewhere for this engine: prompt tokens to compute, and all. Shorter ones go first."""
    all_before: bool = False
    """Whether all of them go first, instead."""


class Foreseen(NamedTuple):
    """The predicted times of one request, in milliseconds."""

    first_token_ms: float
    answer_ms: float
    """To the last token."""
    others_ms: float
    """How much longer all other requests there would take, added up."""
    others_first_ms: float
    """The part of it before their first tokens."""


def foresee(
    estimator: DelayEstimator, engines: Sequence[EngineSight], prompt: int, output: float, now: float
) -> tuple[int, Foreseen] | None:
    """The position of the best engine, and the times there. `engines`: one or more. `output`: expected tokens of the
    answer. None while the pool's pass times aren't known well enough."""
    if not estimator.model.was_trusted:
        return None
    budget, rates = float(estimator.batch_tokens), estimator.model.rates
    held = [min(engine.held, prompt - 1.0) for engine in engines]
    figures: list[EngineFigures] = []
    later: list[int] = []
    for engine, hit in zip(engines, held, strict=True):
        at = estimator.read_figures(engine.life, engine.capacity)
        if engine.planned:
            longest = math.inf if engine.all_before else prompt - hit
            at, behind = _with_planned(at, engine.planned, longest, budget)
            later.append(behind)
        else:
            later.append(0)
        figures.append(at)
    standings = [stand(each, budget, rates) for each in figures]
    terms = estimator.terms(prompt, None, now, min(each.queued for each in figures), rates)
    costs = delays(standings, held, prompt, 0.0, terms)
    best = min(range(len(costs)), key=costs.__getitem__)
    found = _times(standings[best], prompt - held[best], hit=held[best], output=output, terms=terms)
    if later[best]:
        # They begin when this prompt is computed.
        wait = later[best] * (rates.prefill + rates.linear * (prompt - held[best])) * standings[best].speed
        found = found._replace(others_ms=found.others_ms + wait, others_first_ms=found.others_first_ms + wait)
    return best, found


def _with_planned(
    at: EngineFigures, planned: Sequence[tuple[float, int]], longest: float, budget: float
) -> tuple[EngineFigures, int]:
    """The figures as they will be when the planned requests up to this length are there too, and how many longer ones
    follow."""
    before = [tokens for tokens, _ in planned if tokens <= longest]
    waiting = at.waiting + sum(before)
    whole, last = divmod(waiting, budget)
    return at._replace(
        waiting=waiting,
        whole=whole,
        last=last,
        shared=at.shared + (len(before) if last else 0),
        queued=at.queued + len(before),
        carried=at.carried + sum(prompt for _, prompt in planned),
    ), len(planned) - len(before)


def _times(at: EngineDelay[float], uncached: float, hit: float, output: float, terms: Terms) -> Foreseen:
    """The parts of the formula's cost, each by its own time."""
    total = at.waiting + uncached
    filled, rest = divmod(total, terms.budget)
    passes = filled + (rest > 0.0)
    after = rest * (terms.linear + terms.square * rest) + filled * terms.full_pass + terms.prefill * passes
    after += terms.pairs * uncached * (hit + 0.5 * uncached)
    first = max(0.0, at.free_at - terms.now) + at.turn + after + passes * at.step
    if at.room < terms.prompt_and_answer:
        first += (terms.prompt_and_answer - at.room) * at.stall * terms.others
    others = at.there * (after - at.before) + terms.slows_each * at.slowed
    beside = 0.0
    if at.shared:
        joined = min(at.last + uncached, terms.budget)
        beside = at.shared * (joined * (terms.linear + terms.square * joined) - at.joined_ms)
    own = output * (terms.own_step + at.company)
    return Foreseen(
        first_token_ms=first * at.speed,
        answer_ms=(first + own) * at.speed,
        others_ms=max(0.0, others + beside) * at.speed,
        others_first_ms=max(0.0, beside) * at.speed,
    )
