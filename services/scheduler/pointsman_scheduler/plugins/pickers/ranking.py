"""The parameters and the order by total that pickers share."""

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import FEW, Floats
from pointsman_plugins.scheduling.dice import Dice


class PickerParams(Params):
    endpoints: int = Field(default=4, ge=1, le=64)
    """How many to name: the choice, and fallbacks in order."""


def best(totals: Floats, count: int, dice: Dice) -> list[int]:
    """Indices of the `count` greatest, greatest first; the dice settle who is first among equals."""
    if len(totals) <= FEW:
        values = totals.tolist()
        order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
        top = values[order[0]]
        if len(order) == 1 or values[order[1]] < top:
            return order[:count]
        ties = [index for index in order if values[index] == top]
    else:
        ties = (totals == totals.max()).nonzero()[0].tolist()
        wanted = min(count, len(totals))
        near = totals.argpartition(-wanted)[-wanted:]
        greatest = dict(zip(near.tolist(), totals[near].tolist(), strict=True))
        order = sorted(greatest, key=greatest.__getitem__, reverse=True)
    first = ties[dice.below(len(ties))] if len(ties) > 1 else ties[0]
    if order[0] != first:
        if first in order:
            order.remove(first)
        order.insert(0, first)
    return order[:count]
