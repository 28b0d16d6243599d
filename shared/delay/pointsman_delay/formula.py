"""Computes the delay that one choice causes. `stand` is written with operators alone, so that it serves numbers and
columns alike; `delay` serves columns, and `few_delays` numbers.

For a request with u prompt tokens to compute, and an engine that takes up to B prompt tokens a pass:

    ttft   = what is left of the pass in flight + the passes that the waiting tokens and u fill
             + a decode step in each of them
    work   = the prefill time that u adds: those passes, less what they would be without u
    beside = what u adds to the pass that others share with its beginning
    own    = the decode steps of this request in the batch that it joins
    slows  = what its context adds to the other requests' decode steps, for the rest of their answers

    cost   = w (ttft + beside) + (requests there + w r) work + own + slows

in milliseconds times requests. `w` prices a wait for the first token against the same wait within an answer, because a
reader sees the first and often not the second. r is how many requests usually wait at the worker that is chosen:
requests to come pay for the work too. A further pass as such costs them nothing while some worker has no queue
(`spared`), whereas a token computed twice always has a cost.
"""

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from pointsman_delay.pass_model import Rates
from pointsman_plugins.scheduling.arrays import Floats, Number, greatest, least

T = TypeVar("T")


class _New(Protocol):
    def __call__(self, kind: type[T], fields: tuple[object, ...], /) -> T: ...


new: Final = cast("_New", tuple.__new__)  # pyright: ignore[reportUnknownMemberType] - its items
"""Makes a named tuple of all its fields, in order. Its constructor costs twice as much: it takes them by name, too."""


class EngineFigures(NamedTuple):
    """The state of one engine, as numbers; or of all engines, as columns. Times in milliseconds."""

    free_at: float
    """When the pass in flight ends; 0 when none with prompts is."""
    idle: float
    """1 when no pass with prompts is in flight."""
    waiting: float
    """Prompt tokens that wait for a pass."""
    whole: float
    """Whole passes that they fill."""
    last: float
    """Their tokens in the last, unfilled pass."""
    shared: float
    """Requests that share that pass."""
    decoding: float
    """Sequences in the running batch."""
    context: float
    """Their tokens."""
    carried: float
    """These, and the prompts of requests without a first token."""
    queued: float
    """Requests without a first token."""
    speed: float
    """Duration of passes here divided by the pool's."""
    capacity: float
    """Tokens that the KV cache has room for; `BOUNDLESS` when unknown."""


BOUNDLESS: Final = 1e18
"""More tokens than any cache holds. Infinity fails here: infinity times 0 is NaN."""
NEW_ENGINE: Final = EngineFigures(
    free_at=0.0, idle=1.0, waiting=0.0, whole=0.0, last=0.0, shared=0.0, decoding=0.0, context=0.0, carried=0.0,
    queued=0.0, speed=1.0, capacity=BOUNDLESS,
)  # fmt: skip
"""An engine that has had no request."""


class EngineDelay(NamedTuple, Generic[Number]):
    """The part of the delay that depends on the engine and the rates alone: kept from one request to the next."""

    free_at: Number
    waiting: Number
    passes: Number
    """Passes that the waiting tokens fill; the last may be partly filled."""
    before: Number
    """Duration of these passes."""
    last: Number
    joined_ms: Number
    """Duration of the tokens in the last, unfilled pass."""
    shared: Number
    step: Number
    """Duration of a decode step of the running batch."""
    turn: Number
    """Half a decode step when no pass with prompts is in flight: the mean wait until the next pass begins."""
    there: Number
    """Requests."""
    company: Number
    """Their part of a decode step."""
    slowed: Number
    """Requests that have answers left to slow down, in part."""
    room: Number
    """Tokens that the KV cache has left; below 0 when it is overcommitted."""
    stall: Number
    """How long a token that doesn't fit waits for room, for each token of an answer: running requests free it."""
    speed: Number


class Terms(NamedTuple):
    """The terms that are the same for every worker: figures of the request, and values derived from them and the
    rates."""

    now: float
    prompt_and_answer: float
    """Tokens."""
    output: float
    """Expected answer of this request, in tokens."""
    others: float
    """Expected answer of others."""
    budget: float
    """B."""
    full_pass: float
    """How long B prompt tokens take, beyond what any pass with prompts does."""
    own_step: float
    """This request's part of a decode step, alone in the batch."""
    slows_each: float
    """Its part of the decode steps of an answer as long as `others`."""
    first_token: float
    """w."""
    coming: float
    """w r."""
    spared: float
    """The cost that a further pass as such doesn't have."""
    prefill: float
    linear: float
    square: float
    pairs: float
    """The last four are from `Rates`."""


def ask(
    now: float,
    prompt: float,
    output: float,
    others: float,
    budget: float,
    first_token: float,
    ahead: float,
    spared: float,
    rates: Rates,
) -> Terms:
    """The terms of one request; `ahead` is r, `spared` how much less than `ahead` weighs a further pass."""
    prefill, linear, square, pairs, decode, batch, growth = rates
    size = growth * (prompt + 0.5 * output)
    return new(Terms, (
        now, prompt + output, output, others, budget, budget * (linear + square * budget), decode + size,
        others * (size + batch), first_token, first_token * ahead, spared * prefill, prefill, linear, square, pairs,
    ))  # fmt: skip


def stand(at: tuple[Number, ...], budget: float, rates: Rates) -> EngineDelay[Number]:
    """The values that `delay` needs of one engine, or of all."""
    free_at, idle, waiting, whole, last, shared, decoding, context, carried, queued, speed, capacity = at
    prefill, linear, square, _, decode, batch, growth = rates
    step = decode * (decoding > 0) + batch * decoding + growth * context
    passes = whole + (last > 0)
    joined_ms = last * (linear + square * last)
    before = joined_ms + whole * (budget * (linear + square * budget)) + prefill * passes
    there = decoding + queued
    # The constructor of a named tuple costs as much as these figures.
    kind: type[EngineDelay[Number]] = EngineDelay
    return new(kind, (
        free_at, waiting, passes, before, last, joined_ms, shared, step, 0.5 * idle * step, there,
        batch * (there + 1.0) + growth * carried, 0.5 * decoding + 0.67 * queued, capacity - carried,
        step / (context + 1.0), speed,
    ))  # fmt: skip


def delay(at: Iterable[Floats], uncached: Floats, hit: Floats, worth: Floats | None, terms: Terms) -> Floats:
    """The cost of each choice. `at`: the columns of `EngineDelay`. `worth`: the part of this request's prefill that a
    copy of its prefix would save later requests, in [0,1); None for none at all.

    For a hundred workers an operation costs mostly its call and its new array: terms that are zero for all are skipped,
    and the others are added in place, in the order of `few_delays`.
    """
    (
        free_at, waiting, passes, before, last, joined_ms, shared, step, turn,
        there, company, slowed, room, stall, speed,
    ) = at  # fmt: skip
    (
        now, prompt_and_answer, output, others, budget, full_pass, own_step, slows_each, weight, coming, spared,
        prefill, linear, square, pairs,
    ) = terms  # fmt: skip
    total = waiting + uncached
    if greatest(total) < budget:
        # Each prompt fits into one pass of the engine. The result equals that of the general case to the last bit.
        after_passes = 1.0
        after = square * total
        after += linear
        after *= total
        after += prefill
        steps = step
    else:
        filled = total // budget
        rest = total - filled * budget
        after_passes = filled + (rest > 0)
        after = rest * (linear + square * rest) + filled * full_pass + prefill * after_passes
        steps = after_passes * step
    if pairs:
        attention = 0.5 * uncached
        attention += hit
        attention *= pairs * uncached
        after += attention
    work = after - before
    cost = np.maximum(free_at - now, 0.0)
    cost += turn
    cost += after
    cost += steps
    if least(room) < prompt_and_answer:
        # A token that doesn't fit waits until as much has been freed.
        cost += np.maximum(prompt_and_answer - room, 0.0) * stall * others
    if greatest(shared) > 0.0:
        joined = np.minimum(last + uncached, budget)
        beside = square * joined
        beside += linear
        beside *= joined
        beside -= joined_ms
        beside *= shared
        cost += beside
    cost *= weight
    price = there + coming
    cost += price * work
    own = own_step + company
    own *= output
    cost += own
    cost += slows_each * slowed
    cost -= spared * (after_passes - passes)
    if worth is not None:
        price += weight
        work *= worth
        work *= price
        cost -= work
    cost *= speed
    return cost
