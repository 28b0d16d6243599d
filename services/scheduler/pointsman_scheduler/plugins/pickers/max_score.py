"""`max-score`: the highest total, ties settled by the dice."""

from collections.abc import Sequence
from typing import ClassVar

from pointsman_scheduler.domain.arrays import Floats
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.request import ScheduleRequest
from pointsman_scheduler.plugins.pickers.ranking import RankingPicker, best


class MaxScore(RankingPicker):
    """The best total; among equals each is as likely. Fallbacks follow by total."""

    type_name: ClassVar[str] = "max-score"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        return best(totals, self.endpoints, candidates.dice)
