"""One scheduling profile: filters, then weighted scorers, then one picker."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.outcome import Removed, Run
from pointsman_scheduler.domain.points import Filter, Picker, Scorer
from pointsman_scheduler.domain.request import ScheduleRequest


class Profile:
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
        """Filter, score and pick. A run that ends with nobody says which filter took the last."""
        run = Run(self.name, everyone, self.weights)
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
        run.scores = table = np.empty((len(self.scorers) + 1, candidates.size))
        for position, scorer in enumerate(self.scorers):
            table[position] = scorer.score(request, candidates)
        scores, totals = table[:-1], table[-1]
        # fmax and fmin take the number where the other is NaN.
        np.fmin(np.fmax(scores, 0.0, scores), 1.0, scores)
        # Not a product of matrices: BLAS sums the columns in different ways, so equal candidates would have totals that
        # differ in their last digit, and other ones on another machine.
        totals[:] = 0.0
        for weight, column in zip(self._weights, scores, strict=True):
            totals += weight * column
        picked = self.picker.pick(request, candidates, totals)
        run.chosen = list(picked) if candidates.rows is None else [candidates.row(index) for index in picked]
        if not run.chosen:
            run.error = f"{self.picker.name} picked nobody"
        return run
