"""`round-robin`: each candidate in turn."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Picker
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.pickers.ranking import PickerParams


class RoundRobinPicker(Picker[PickerParams]):
    """Each candidate in turn, in the order of their names; totals don't matter. Every scheduler has a turn of its
    own."""

    type_name = "round-robin"

    def setup(self) -> None:
        self._last = ""
        """Name of the worker that was chosen last."""

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        names, size = candidates.fleet.names, candidates.size
        following = bisect_right(names, self._last)
        first = int(np.searchsorted(candidates.indices(), following)) % size
        self._last = names[candidates.row(first)]
        return [(first + place) % size for place in range(min(size, self.params.endpoints))]
