"""`round-robin`: each candidate in turn."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from pointsman_core.plugins import Plugin
from pointsman_scheduler.domain.arrays import Floats
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.request import ScheduleRequest
from pointsman_scheduler.plugins.pickers.ranking import PickerParams, RankingPicker


class RoundRobin(RankingPicker):
    """Each candidate in turn, in the order of their names; totals don't matter. Every scheduler has a turn of its
    own."""

    type_name: ClassVar[str] = "round-robin"

    def __init__(self, name: str, params: PickerParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._last = ""
        """Name of the worker that was chosen last."""

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        names, size = candidates.fleet.names, candidates.size
        following = bisect_right(names, self._last)
        first = int(np.searchsorted(candidates.indices(), following)) % size
        self._last = names[candidates.row(first)]
        return [(first + place) % size for place in range(min(size, self.endpoints))]
