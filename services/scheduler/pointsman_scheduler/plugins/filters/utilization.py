"""`utilization`: workers within every limit."""

from collections.abc import Callable
from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Bools, Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import SATURATED, Exhausted
from pointsman_plugins.scheduling.worker import Worker

Metric = Literal["open", "running", "waiting", "kv-usage"]

_COLUMNS: Final[dict[Metric, Callable[[Candidates], Floats]]] = {
    "open": lambda candidates: candidates.open,
    "running": lambda candidates: candidates.running,
    "waiting": lambda candidates: candidates.waiting,
    "kv-usage": lambda candidates: candidates.kv_usage,
}


class MetricLimit(Params):
    metric: Metric
    max: float = Field(ge=0)
    """A worker above it is removed."""


class UtilizationFilterParams(Params):
    limits: tuple[MetricLimit, ...] = Field(min_length=1)
    """Each with `metric`, one of `open` (requests on the schedulers' books), `running`, `waiting` and `kv-usage` (the
    engine's), and `max`."""
    when_all_exceed: Literal["reject", "keep"] = "reject"
    """When no worker is within all limits: reject with 429, or let every worker pass."""


class UtilizationFilter(Filter[UtilizationFilterParams]):
    """Removes workers over any of the limits."""

    type_name = "utilization"
    exhausted: ClassVar[Exhausted] = SATURATED

    def setup(self) -> None:
        self._keep_all = self.params.when_all_exceed == "keep"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        keep: Bools = np.ones(candidates.size, dtype=np.bool_)
        for limit in self.params.limits:
            keep &= _COLUMNS[limit.metric](candidates) <= limit.max
        if self._keep_all and not keep.any():
            return Removal(~keep, "", "every worker is over its limits")

        def why(worker: Worker) -> str:
            return self._why(worker, candidates)

        return Removal(keep, why)

    def _why(self, worker: Worker, candidates: Candidates) -> str:
        alone = Candidates(candidates.fleet, candidates.now, candidates.dice, np.array([worker.row]))
        figures = ((limit, float(_COLUMNS[limit.metric](alone)[0])) for limit in self.params.limits)
        return ", ".join(
            f"{limit.metric} {value:g} is over {limit.max:g}" for limit, value in figures if value > limit.max
        )
