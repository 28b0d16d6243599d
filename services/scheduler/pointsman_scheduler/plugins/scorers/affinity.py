"""Scorers for the worker that holds the request's state: `session`, `lora-affinity`."""

from typing import Final

import numpy as np

from pointsman_plugins.scheduling.adapters import ACTIVE, WAITING
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.session import SESSION_WORKERS


class SessionScorer(Scorer):
    """1 for the worker that serves the session, 0 for the others."""

    type_name = "session"
    consumes = (SESSION_WORKERS,)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        indices = candidates.indices()
        for name in request.get(SESSION_WORKERS):
            bound = candidates.fleet.find(name)
            if bound is not None and bound.present and np.any(own := indices == bound.row):
                return own.astype(np.float64)
        return np.zeros(candidates.size)


_ACTIVE: Final = 1.0
_ROOM: Final = 0.8
_WAITING: Final = 0.6


class LoraAffinity(Scorer):
    """1 where the adapter is loaded or was just sent, 0.8 where the engine has room for one more, 0.6 where it waits
    to be loaded, 0 elsewhere (as llm-d-router 0.10 scores it). 1 for all when the request names no adapter."""

    type_name = "lora-affinity"
    only_for = "lora"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        if request.lora is None:
            return np.ones(candidates.size)
        fleet = candidates.fleet
        states = fleet.adapters.states(request.lora, fleet.workers)
        scores = np.where(fleet.adapters.free_slots > 0, _ROOM, np.where(states == WAITING, _WAITING, 0.0))
        return candidates.take(np.where(states == ACTIVE, _ACTIVE, scores))
