"""Filters by a request's own demands: its session's worker, a subset of endpoints, its model and its adapter."""

import numpy as np

from pointsman_core.subset import Place, named
from pointsman_plugins.scheduling.adapters import ABSENT
from pointsman_plugins.scheduling.arrays import Bools
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.session import SESSION_WORKERS


class SessionFilter(Filter):
    """Keeps only the worker that serves the session, if it is among the candidates. Otherwise, and without a session,
    every worker passes: an answer from another worker is better than none."""

    type_name = "session"
    consumes = (SESSION_WORKERS,)
    only_for = "session"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        indices = candidates.indices()
        for name in request.get(SESSION_WORKERS):
            bound = candidates.fleet.find(name)
            if bound is not None and bound.present and np.any(keep := indices == bound.row):
                return Removal(keep, f"{bound.name} serves this session")
        return None


class Subset(Filter):
    """Keeps the workers that the request's subset names, by host or by host and port. IPv6 with or without brackets."""

    type_name = "subset"
    only_for = "subset"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        if request.facts.subset is None:
            return None
        keep = named([Place(worker.address, worker.host) for worker in candidates.workers()], request.facts.subset)
        return Removal(np.array(keep, dtype=np.bool_), "not in the subset that the proxy asked for")


class Serves(Filter):
    """Keeps the workers that registered the model, or registered none. Every worker passes for a request for an
    adapter. Experimental: only a pool of several base models needs it, and two pools are better."""

    type_name = "serves"

    def setup(self) -> None:
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


class LoraCapable(Filter):
    """Keeps the workers that registered the adapter or have it loaded. An engine that names no parent for an adapter
    registers it as a model. Every worker passes for a request without an adapter."""

    type_name = "lora-capable"
    only_for = "lora"

    def setup(self) -> None:
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
