"""One scheduling profile: filters, then weighted scorers, then one picker."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.arrays import FEW, Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Picker, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Removed, Run, Table


class CompiledProfile:
    """Built once for each policy; `run` for each request."""

    def __init__(
        self, name: str, filters: Sequence[Filter], scorers: Sequence[tuple[Scorer, float]], picker: Picker
    ) -> None:
        self.name: Final = name
        self.filters: Final = tuple(filters)
        self.scorers: Final = tuple(scorer for scorer, _ in scorers)
        self.picker: Final = picker
        self.weights: Final = {scorer.name: weight for scorer, weight in scorers}
        self._weights: Final = [weight for _, weight in scorers]

    def run(self, request: ScheduleRequest, everyone: Candidates) -> Run:
        """Filter, score and pick. A run without a remaining endpoint names the filter that removed the last one."""
        run = Run(self.name, everyone, self.weights, None, [], [], [])
        candidates = everyone
        for each in self.filters:
            removal = each.filter(request, candidates)
            if removal is None:
                continue
            if removal.degraded is not None:
                run.degraded.append(removal.degraded)
            remaining = candidates.keep(removal.keep)
            if remaining.size == candidates.size:
                continue
            run.removed.append(Removed(each.name, candidates.keep(~removal.keep).indices(), removal.why))
            run.candidates = candidates = remaining
            if not candidates.size:
                run.error = f"{each.name} left no candidate"
                run.exhausted = each.exhausted
                return run
        weigh = self._weigh_few if candidates.size <= FEW else self._weigh_many
        run.scores, totals = weigh(request, candidates)
        picked = self.picker.pick(request, candidates, totals)
        run.chosen = list(picked) if candidates.rows is None else [candidates.row(index) for index in picked]
        if not run.chosen:
            run.error = f"{self.picker.name} picked no worker"
        return run

    # Neither makes a product of matrices: BLAS sums the columns in different ways, so equal candidates would have
    # totals that differ in their last digit, and other ones on another machine.

    def _weigh_few(self, request: ScheduleRequest, candidates: Candidates) -> tuple[Table, Floats]:
        count = candidates.size
        scores: list[list[float]] = []
        totals = [0.0] * count
        for scorer, weight in zip(self.scorers, self._weights, strict=True):
            given = scorer.score(request, candidates)
            column: list[float]
            if isinstance(given, list):
                column = list(given)
            else:
                column = (given if len(given) == count else np.broadcast_to(given, count)).tolist()
            # Loops, because a comprehension is a call.
            for row, value in zip(range(count), column, strict=True):
                if not 0.0 <= value <= 1.0:
                    column[row] = _clamped(value)
                totals[row] += weight * column[row]
            scores.append(column)
        scores.append(totals)
        return scores, np.array(totals)

    def _weigh_many(self, request: ScheduleRequest, candidates: Candidates) -> tuple[Table, Floats]:
        table: Floats = np.empty((len(self.scorers) + 1, candidates.size))
        for position, scorer in enumerate(self.scorers):
            table[position] = scorer.score(request, candidates)
        scores, totals = table[:-1], table[-1]
        # fmax and fmin take the number where the other is NaN.
        np.fmin(np.fmax(scores, 0.0, scores), 1.0, scores)
        totals[:] = 0.0
        for weight, column in zip(self._weights, scores, strict=True):
            totals += weight * column
        return table, totals


def _clamped(value: float) -> float:
    return 1.0 if value > 1.0 else 0.0
