"""`data-parallel`: the rank inside an engine that runs several."""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import ResponseObserver
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.plugins.handlers.single import SingleHandler


class DataParallelParams(Params):
    imbalance: int = Field(default=4, ge=0)
    """Most requests by which the rank that suits the prompt may exceed the emptiest one."""


class DataParallel(SingleHandler[DataParallelParams], ResponseObserver[DataParallelParams]):
    """One scheduling profile, then a rank of the chosen worker: ranks keep caches of their own, so prompts with the
    same first block go to the same rank, unless that has `imbalance` requests more than another."""

    type_name = "data-parallel"
    pre_request: ClassVar[tuple[str, ...]] = ("rank-header",)

    def setup(self) -> None:
        self._open: Counter[tuple[str, int]] = Counter()

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        selection = super().process_results(request, results)
        if selection is not None:
            run = selection.primary
            worker = run.candidates.fleet.workers[run.chosen[0]]
            ranks = worker.registration.data_parallel_size
            if ranks > 1:
                count = [self._open[worker.name, rank] for rank in range(ranks)]
                least = min(range(ranks), key=count.__getitem__)
                home = request.spread(ranks)
                if home is None:
                    home = least
                selection.rank = home if count[home] - count[least] <= self.params.imbalance else least
        return selection

    def chosen(self, hold: Hold, now: float) -> None:
        if hold.change.rank is not None:
            self._open[hold.worker.name, hold.change.rank] += 1

    def gone(self, hold: Hold, now: float) -> None:
        if hold.change.rank is not None:
            key = (hold.worker.name, hold.change.rank)
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
