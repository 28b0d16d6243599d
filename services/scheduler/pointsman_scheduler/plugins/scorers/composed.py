"""Scorers that call others: `least-of`, `greatest-of`, `score-by-condition`.

The scorers that one of these calls stand in the same list, where their weights don't count, and run nowhere else.
"""

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params, Reference
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Decider, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest


class SeveralScorersParams(Params):
    of: tuple[Reference, ...] = Field(min_length=2)
    """Names of the scorers to call."""


def _scores(each: Scorer, request: ScheduleRequest, candidates: Candidates) -> Floats:
    """The scores of a scorer, as a profile asks for them: in [0,1], 0 for NaN."""
    if each.only_for is not None and not request.wishes(each.only_for):
        return np.ones(candidates.size)
    scores = np.broadcast_to(np.asarray(each.score(request, candidates), dtype=np.float64), candidates.size)
    return np.fmin(np.fmax(scores, 0.0), 1.0)


class LeastOf(Scorer[SeveralScorersParams]):
    """For each worker the lowest of its scores: a worker must suit by all of them."""

    type_name = "least-of"

    def setup(self) -> None:
        self._parts = tuple([self.refer(name, Scorer) for name in self.params.of])

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return np.minimum.reduce([_scores(each, request, candidates) for each in self._parts])


class GreatestOf(Scorer[SeveralScorersParams]):
    """For each worker the highest of its scores: one of them is enough."""

    type_name = "greatest-of"

    def setup(self) -> None:
        self._parts = tuple([self.refer(name, Scorer) for name in self.params.of])

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return np.maximum.reduce([_scores(each, request, candidates) for each in self._parts])


class ScoreByConditionParams(Params):
    when: Reference
    """Name of the decider that is asked."""
    then: Reference
    """Name of the scorer for requests that it wants."""
    otherwise: Reference | None = None
    """Name of the scorer for all others; without it each worker scores 1."""


class ScoreByCondition(Scorer[ScoreByConditionParams]):
    """Scores by one scorer for the requests that a decider wants, and by another one for the rest."""

    type_name = "score-by-condition"

    def setup(self) -> None:
        params = self.params
        self._when = self.refer(params.when, Decider)
        self._then = self.refer(params.then, Scorer)
        self._otherwise = self.refer(params.otherwise, Scorer) if params.otherwise is not None else None

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        part = self._then if self._when.wanted(request, None) else self._otherwise
        return np.ones(candidates.size) if part is None else _scores(part, request, candidates)
