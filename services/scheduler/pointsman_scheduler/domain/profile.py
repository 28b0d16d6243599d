"""One scheduling profile: filters, then weighted scorers, then one picker."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_plugins.plugin import Plugin
from pointsman_plugins.scheduling.arrays import FEW, Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.few_scores import Weighed, weigh_few
from pointsman_plugins.scheduling.points import Filter, Picker, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Removed, Run, Table


class CompiledProfile:
    """Built once for each policy; `run` for each request."""

    def __init__(
        self,
        name: str,
        filters: Sequence[Filter],
        scorers: Sequence[tuple[Scorer, float]],
        picker: Picker,
        called: Sequence[Plugin] = (),
    ) -> None:
        """`called`: filters and scorers that run only where others of them call them."""
        self.name: Final = name
        self.called: Final = tuple(called)
        self.filters: Final = tuple(filters)
        self.scorers: Final = tuple(scorer for scorer, _ in scorers)
        self.picker: Final = picker
        self.weights: Final = {scorer.name: weight for scorer, weight in scorers}
        self._always: Final = [each for each in filters if each.only_for is None]
        """The filters that are asked about every request."""
        weighed: list[Weighed] = [(each, each.only_for, weight) for each, weight in scorers]
        self._weighed: Final = weighed
        self._picks_lists: Final = picker.takes_lists
        self._weights: Final[Floats] = np.array([[weight] for _, weight in scorers]).reshape(-1, 1)

    def run(self, request: ScheduleRequest, everyone: Candidates) -> Run:
        """Filter, score and pick. A run without a remaining endpoint names the filter that removed the last one."""
        run = Run(self.name, everyone, self.weights)
        candidates, in_turn = everyone, False
        for each in self._always if request.plain else self._asked(request):
            removal = each.filter(request, candidates)
            if removal is None:
                continue
            if removal.degraded is not None:
                run.degraded.append(removal.degraded)
                in_turn = in_turn or removal.in_turn
            remaining = candidates.keep(removal.keep)
            if remaining.size == candidates.size:
                continue
            run.removed.append(Removed(each.name, candidates.keep(~removal.keep).indices(), removal.why))
            run.candidates = candidates = remaining
            if not candidates.size:
                run.error = f"{each.name} left no candidate"
                run.exhausted = each.exhausted
                return run
        count = candidates.size
        if count <= FEW:
            run.scores = table = weigh_few(self._weighed, request, candidates)
            totals = table[-1] if self._picks_lists else np.array(table[-1])
        else:
            run.scores, totals = self._weigh_many(request, candidates)
        picked = self.picker.pick(request, candidates, totals)  # pyright: ignore[reportArgumentType] - a list where told
        if in_turn:
            picked = _in_turn(candidates, len(picked))
        run.chosen = list(picked) if candidates.rows is None else [candidates.row(index) for index in picked]
        if not run.chosen:
            run.error = f"{self.picker.name} picked no worker"
        return run

    def _asked(self, request: ScheduleRequest) -> list[Filter]:
        """The filters that are asked about this request."""
        return [each for each in self.filters if each.only_for is None or request.wishes(each.only_for)]

    def _weigh_many(self, request: ScheduleRequest, candidates: Candidates) -> tuple[Table, Floats]:
        table: Floats = np.empty((len(self.scorers) + 1, candidates.size))
        for position, (scorer, wish, _) in enumerate(self._weighed):
            given = wish is None or request.wishes(wish)
            table[position] = scorer.score(request, candidates) if given else 1.0
        scores, totals = table[:-1], table[-1]
        # The weighted scores are added up one after the other, as `weigh_few` does. A product of matrices doesn't: BLAS
        # sums the columns in different ways, so equal candidates would have totals that differ in their last digit, and
        # other ones on another machine.
        # fmax and fmin take the number where the other is NaN.
        np.fmin(np.fmax(scores, 0.0, scores), 1.0, scores)
        np.add.reduce(scores * self._weights, 0, None, totals)
        return table, totals


def _in_turn(candidates: Candidates, count: int) -> list[int]:
    """Indices of the candidates that got no request for the longest time."""
    sent = [(worker.sent_at, index) for index, worker in enumerate(candidates.workers())]
    return [index for _, index in sorted(sent)[:count]]
