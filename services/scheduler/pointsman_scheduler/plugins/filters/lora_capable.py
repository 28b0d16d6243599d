"""`lora-capable`: workers that can serve the adapter that the request names."""

from typing import ClassVar

import numpy as np

from pointsman_plugins.plugin import Params, Plugin
from pointsman_plugins.scheduling.adapters import ABSENT
from pointsman_plugins.scheduling.arrays import Bools
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest


class LoraCapable(Filter):
    """Keeps the workers that registered the adapter or have it loaded; an engine that names no parent of it registers
    it as a model. A request without one passes."""

    type_name: ClassVar[str] = "lora-capable"

    def __init__(self, name: str, params: Params, others: dict[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._epoch = -1
        self._registered: dict[str, Bools] = {}

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        lora, fleet = request.lora, candidates.fleet
        if lora is None:
            return None
        if self._epoch != fleet.epoch:
            self._epoch = fleet.epoch
            self._registered.clear()
        registered = self._registered.get(lora)
        if registered is None:
            known = [(worker.registration.loras, worker.registration.models) for worker in fleet.workers]
            registered = np.array([lora in loras or lora in models for loras, models in known], dtype=np.bool_)
            self._registered[lora] = registered
        keep = registered | (fleet.adapters.states(lora, fleet.workers) != ABSENT)
        if candidates.rows is not None:
            keep = keep[candidates.rows]
        return Removal(keep, f"does not serve the adapter {lora!r}")
