"""The delay that one choice causes; written with operators alone, so that it serves numbers and columns alike.

For a request with u prompt tokens to compute, and an engine that takes up to B prompt tokens a pass:

    ttft   = what is left of the pass in flight + the passes that the waiting tokens and u fill
             + a decode step in each of them
    work   = the prefill time that u adds: those passes, less what they would be without u
    beside = what u adds to the pass that others share with its beginning
    own    = the decode steps of this request in the batch that it joins
    slows  = what its context adds to everybody else's decode steps, over what they have left

    cost   = w (ttft + beside) + (requests there + w r) work + own + slows

in milliseconds times requests. `w` prices a wait for the first token against the same wait within an answer, because a
reader sees the first and often not the second. r is how many requests usually wait at the worker that is chosen:
requests to come pay for the work too. A further pass as such costs them nothing while some worker has no queue
(`spared`), whereas a token computed twice always costs somebody.
"""

from typing import NamedTuple, TypeVar

import numpy as np

from pointsman_scheduler.domain.arrays import Floats

Number = TypeVar("Number", float, Floats)


class Figures(NamedTuple):
    """What is known of one engine: numbers; or of all: columns. Times in milliseconds."""

    free_at: float
    """When the pass in flight ends; minus infinity when none with prompts is."""
    idle: float
    """1 when no pass with prompts is in flight."""
    waiting: float
    """Prompt tokens that wait for a pass."""
    passes: float
    """Passes that they fill, the last one maybe in part."""
    whole: float
    """Those that they fill whole."""
    last: float
    """Their tokens in the last, unfilled pass."""
    shared: float
    """Requests that share that pass."""
    decoding: float
    """Sequences in the running batch."""
    decodes: float
    """1 when there are any."""
    context: float
    """Their tokens."""
    carried: float
    """These, and the prompts of requests without a first token."""
    queued: float
    """Requests without a first token."""
    speed: float
    """Durations here over those of the pool."""
    capacity: float
    """Tokens that the KV cache has room for; infinite when it didn't say."""


class Terms(NamedTuple):
    """What is the same for every worker."""

    now: float
    prompt: float
    output: float
    """Expected answer of this request, in tokens."""
    others: float
    """Expected answer of others."""
    budget: float
    first_token: float
    """w."""
    ahead: float
    """r."""
    spared: float
    prefill: float
    linear: float
    square: float
    pairs: float
    decode: float
    batch: float
    growth: float
    """Coefficients of the pass model, in milliseconds and tokens."""


def delay(at: tuple[Number, ...], uncached: Number, hit: Number, worth: Number, terms: Terms) -> Number:
    """The cost of each choice. `worth`: the part of this request's prefill that a copy of its prefix would save later
    requests, in [0,1)."""
    (
        free_at, idle, waiting, passes, whole, last, shared,
        decoding, decodes, context, carried, queued, speed, capacity,
    ) = at  # fmt: skip
    (
        now, prompt, output, others, budget, weight, ahead, spared,
        prefill, linear, square, pairs, decode, batch, growth,
    ) = terms  # fmt: skip
    step = decode * decodes + batch * decoding + growth * context
    before = last * (linear + square * last) + whole * (budget * (linear + square * budget)) + prefill * passes
    total = waiting + uncached
    filled = total // budget
    rest = total - filled * budget
    after_passes = filled + (rest > 0)
    after = rest * (linear + square * rest) + filled * (budget * (linear + square * budget)) + prefill * after_passes
    after = after + pairs * uncached * (hit + 0.5 * uncached)
    work = after - before
    left = free_at - now
    wait = _positive(left) + 0.5 * idle * step
    ttft = wait + after + after_passes * step
    joined = last + uncached
    joined = joined - _positive(joined - budget)
    beside = shared * (joined * (linear + square * joined) - last * (linear + square * last))
    there = decoding + queued
    size = growth * (prompt + 0.5 * output)
    own = output * (decode + size + batch * (there + 1.0) + growth * carried)
    slows = others * (size + batch) * (0.5 * decoding + 0.67 * queued)
    over = _positive(carried + (prompt + output) - capacity)
    # What doesn't fit waits until as much has been freed.
    ttft = ttft + over / (context + 1.0) * others * step
    price = there + weight * ahead
    cost = weight * (ttft + beside) + price * work + own + slows - spared * prefill * (after_passes - passes)
    return (cost - worth * work * (price + weight)) * speed


def _positive(value: Number) -> Number:
    """The value where it is above 0, otherwise 0; minus infinity is 0."""
    if isinstance(value, np.ndarray):
        return np.maximum(value, 0.0)
    return max(value, 0.0)
