"""Scorers of the engine's load: `queue`, `running`, `load-aware`, `kv-utilization` (formulas as in llm-d-router 0.10,
`scheduling/scorer`)."""

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import FEW, Floats, Scores, greatest, least
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.few_scores import fewest_first_of_few
from pointsman_plugins.scheduling.points import Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest


def fewest_first(figures: Floats) -> Scores:
    """1 for the least, 0 for the most, linear between; 1 for all when they are equal."""
    if len(figures) <= FEW:
        return fewest_first_of_few(figures.tolist())
    fewest, most = least(figures), greatest(figures)
    if most == fewest:
        return np.ones(len(figures))
    scores = most - figures
    scores /= most - fewest
    return scores


class QueueLength(Scorer):
    """Fewer requests waiting in the engine is better, relative to the other candidates."""

    type_name = "queue"
    bounded = True

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.take(candidates.fleet.waiting))


class Running(Scorer):
    """A smaller running batch is better, relative to the other candidates."""

    type_name = "running"
    bounded = True

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.take(candidates.fleet.running))


class LoadAwareParams(Params):
    threshold: int = Field(default=128, ge=1)
    """Waiting requests at which the score is 0."""


class LoadAware(Scorer[LoadAwareParams]):
    """0.5 for an empty queue, down to 0 at `threshold` requests: independent of the other candidates."""

    type_name = "load-aware"

    def setup(self) -> None:
        self._threshold = float(self.params.threshold)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return 0.5 * (1.0 - np.minimum(candidates.waiting / self._threshold, 1.0))


class KvUtilization(Scorer):
    """The free part of the KV cache."""

    type_name = "kv-utilization"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return 1.0 - candidates.kv_usage
