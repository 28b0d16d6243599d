"""`max-score`: the highest total, ties settled by the dice."""

from collections.abc import Sequence
from typing import ClassVar

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Picker
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.pickers.ranking import PickerParams, best


class MaxScore(Picker[PickerParams]):
    """The best total; among equals each is as likely. Fallbacks follow by total."""

    type_name: ClassVar[str] = "max-score"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        return best(totals, self.params.endpoints, candidates.dice)
