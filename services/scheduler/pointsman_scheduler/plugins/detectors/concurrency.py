"""`concurrency`: open requests against the workers' limits. Independent of every report."""

from typing import Literal

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.flow_control import SaturationDetector
from pointsman_scheduler.plugins.detectors.utilization import WorkerRoles, fullest


class ConcurrencyParams(Params):
    mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Unit of the limit; `hybrid` takes the fuller of both at each worker."""
    max_requests: int = Field(default=100, ge=1)
    """Open requests at which a worker is saturated."""
    max_tokens: int = Field(default=1_000_000, ge=1)
    """Prompt tokens of open requests at which a worker is saturated."""


class Concurrency(SaturationDetector[ConcurrencyParams]):
    """The mean, over the workers, of open requests or tokens divided by the limit, at most 1 for each worker: the pool
    is saturated when each worker is. Ejected and sleeping workers don't count."""

    type_name = "concurrency"

    def setup(self) -> None:
        self._stages = WorkerRoles()

    def saturation(self, fleet: Fleet, now: float) -> float:
        requests = fleet.open / self.params.max_requests
        tokens = fleet.context_tokens / self.params.max_tokens
        match self.params.mode:
            case "requests":
                values = requests
            case "tokens":
                values = tokens
            case "hybrid":
                values = np.maximum(requests, tokens)
        counted = np.ones(len(values), dtype=np.bool_)
        counted[[worker.row for worker in fleet.ejected]] = False
        if not fleet.all_eligible(now):
            counted[[worker.row for worker in fleet.workers if worker.state == "asleep"]] = False
        return fullest(values, counted, self._stages.of(fleet))
