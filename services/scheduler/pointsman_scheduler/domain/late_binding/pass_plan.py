"""Chooses the requests that best fill an engine's next pass."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from pointsman_delay.outlook import Outlook

T = TypeVar("T")


class Queued(NamedTuple, Generic[T]):
    """One request of those planned for an engine."""

    uncached: float
    """Tokens to compute."""
    what: T


def fill(outlook: Outlook, row: int, there: int, queue: Sequence[Queued[T]]) -> int:
    """How many of `queue`, from its first on, go into the engine's next pass, which `there` requests have tokens in.

    One more request of u tokens beside T makes the pass longer for the n requests in it, and spares itself and all that
    wait behind it a pass's fixed part and a decode step:

        joins when  n (P(T + u) - P(T))  <  (1 + behind) (spared + step) + decoding spared / w
        spared = P(T) + P(u) - P(T + u)

    with P the time of a pass without its decode step. The answers that are being written wait for it too, at a w-th of
    the price of a first token. So short prompts share a pass, and a long one goes alone.
    """
    rates, budget = outlook.rates, outlook.budget
    tokens, count = outlook.base[row].waiting, there
    step = outlook.step_ms(row) / outlook.base[row].speed
    decoding = outlook.base[row].decoding / outlook.first_token_weight
    taken = 0
    for place, (uncached, _) in enumerate(queue):
        if tokens >= budget:
            break
        if count:
            longer = rates.passes_ms(min(tokens + uncached, budget), budget) - rates.passes_ms(tokens, budget)
            spared = rates.prefill - 2.0 * rates.square * tokens * min(uncached, budget)
            behind = len(queue) - place
            if count * longer >= behind * (spared + step) + decoding * spared:
                break
        tokens += uncached
        count += 1
        taken += 1
    return taken
