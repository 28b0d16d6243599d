"""`serves`: workers that serve the request's model, for a pool of several base models (S1-18)."""

from typing import ClassVar

import numpy as np

from pointsman_plugins.plugin import Params, Plugin
from pointsman_plugins.scheduling.arrays import Bools
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest


class Serves(Filter):
    """Keeps the workers that registered the model, or registered none. A request for an adapter passes. Only a pool of
    several base models needs it, and two pools are better: an experiment."""

    type_name: ClassVar[str] = "serves"

    def __init__(self, name: str, params: Params, others: dict[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._epoch = -1
        self._serving: dict[str, Bools] = {}

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        if request.lora is not None:
            return None
        fleet, model = candidates.fleet, request.model
        if self._epoch != fleet.epoch:
            self._epoch = fleet.epoch
            self._serving.clear()
        keep = self._serving.get(model)
        if keep is None:
            models = [worker.registration.models for worker in fleet.workers]
            keep = self._serving[model] = np.array([not known or model in known for known in models], dtype=np.bool_)
        if candidates.rows is not None:
            keep = keep[candidates.rows]
        return Removal(keep, f"does not serve the model {model!r}")
