"""Scorers of what the engine has to do: `queue`, `running`, `load-aware`, `kv-utilization`
(formulas as in llm-d-router 0.10, `scheduling/scorer`)."""

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.arrays import FEW, Floats, Scores
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.points import Scorer
from pointsman_scheduler.domain.request import ScheduleRequest


def fewest_first(figures: Floats) -> Scores:
    """1 for the least, 0 for the most, linear between; 1 for all when they are equal."""
    if len(figures) <= FEW:
        values = figures.tolist()
        least, most = min(values), max(values)
        if most == least:
            return [1.0] * len(values)
        spread = most - least
        return [(most - value) / spread for value in values]
    least, most = float(figures.min()), float(figures.max())
    if most == least:
        return np.ones(len(figures))
    return (most - figures) / (most - least)


class Queue(Scorer):
    """Fewer requests waiting in the engine is better, relative to the other candidates."""

    type_name: ClassVar[str] = "queue"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.waiting)


class Running(Scorer):
    """A smaller running batch is better, relative to the other candidates."""

    type_name: ClassVar[str] = "running"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.running)


class LoadAwareParams(Params):
    threshold: int = Field(default=128, ge=1)
    """Waiting requests at which the score is 0."""


class LoadAware(Scorer):
    """0.5 for an empty queue, down to 0 at `threshold` requests: independent of the other candidates."""

    type_name: ClassVar[str] = "load-aware"
    params_type: ClassVar[type[Params]] = LoadAwareParams

    def __init__(self, name: str, params: LoadAwareParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._threshold: Final = float(params.threshold)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return 0.5 * (1.0 - np.minimum(candidates.waiting / self._threshold, 1.0))


class KvUtilization(Scorer):
    """The free part of the KV cache."""

    type_name: ClassVar[str] = "kv-utilization"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return 1.0 - candidates.kv_usage
