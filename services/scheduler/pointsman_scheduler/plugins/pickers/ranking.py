"""What pickers share: how many endpoints they name, and the order by total."""

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.arrays import FEW, Floats
from pointsman_scheduler.domain.dice import Dice
from pointsman_scheduler.domain.points import Picker


class PickerParams(Params):
    endpoints: int = Field(default=4, ge=1, le=64)
    """How many to name: the choice, and fallbacks in order."""


class RankingPicker(Picker):
    """A picker that names the choice and its fallbacks, `endpoints` in all."""

    params_type: ClassVar[type[Params]] = PickerParams

    def __init__(self, name: str, params: PickerParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self.endpoints: Final = params.endpoints


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
