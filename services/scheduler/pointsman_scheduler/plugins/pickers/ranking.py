"""Pickers that need no chance but for ties, and the parameters and order that all pickers share."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import FEW, Floats, Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.few_scores import rank_few
from pointsman_plugins.scheduling.points import Picker
from pointsman_plugins.scheduling.request import ScheduleRequest


class PickerParams(Params):
    endpoints: int = Field(default=4, ge=1, le=64)
    """Number of endpoints to name: the choice, and fallbacks in order."""


def best(totals: Scores, count: int, dice: Dice) -> list[int]:
    """Indices of the `count` greatest, greatest first; the dice settle ties."""
    if len(totals) == 1:
        return [0]
    if isinstance(totals, list) or len(totals) <= FEW:
        order, ties = rank_few(totals if isinstance(totals, list) else totals.tolist())
    else:
        wanted = min(count, len(totals))
        near = totals.argpartition(-wanted)[-wanted:]
        best_of_all = dict(zip(near.tolist(), totals[near].tolist(), strict=True))
        order = sorted(best_of_all, key=best_of_all.__getitem__, reverse=True)
        top = best_of_all[order[0]]
        if wanted > 1 and best_of_all[order[1]] < top:
            return order
        ties = (totals == top).nonzero()[0].tolist()
    first = ties[dice.below(len(ties))] if len(ties) > 1 else ties[0]
    if order[0] != first:
        if first in order:
            order.remove(first)
        order.insert(0, first)
    return order[:count]


class MaxScore(Picker[PickerParams]):
    """The best total; among equals each is as likely. Fallbacks follow by total."""

    type_name: ClassVar[str] = "max-score"
    takes_lists = True

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Scores) -> Sequence[int]:
        return best(totals, self.params.endpoints, candidates.dice)


class RoundRobinPicker(Picker[PickerParams]):
    """Each candidate in turn, in the order of their names; totals don't matter. Every scheduler keeps its own turn."""

    type_name = "round-robin"

    def setup(self) -> None:
        self._last = ""
        """Name of the worker that was chosen last."""

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        names, size = candidates.fleet.names, candidates.size
        following = bisect_right(names, self._last)
        first = int(np.searchsorted(candidates.indices(), following)) % size
        if not request.facts.dry_run:
            self._last = names[candidates.row(first)]
        return [(first + place) % size for place in range(min(size, self.params.endpoints))]
