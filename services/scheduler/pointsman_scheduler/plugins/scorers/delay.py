"""`least-delay`: the worker where the request delays itself and the others least."""

from typing import ClassVar

from pointsman_plugins.scheduling.arrays import Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.delay import DELAY_COST
from pointsman_scheduler.plugins.scorers.load import fewest_first


class LeastDelay(Scorer):
    """1 for the least predicted delay, 0 for the most, in proportion between; all equal: 1."""

    type_name: ClassVar[str] = "least-delay"
    consumes = (DELAY_COST,)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.take(request.get(DELAY_COST)))
