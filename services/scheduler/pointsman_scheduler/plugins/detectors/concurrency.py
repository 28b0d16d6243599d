"""`concurrency`: what the books hold against what workers may hold. Independent of every report."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.fleet import Fleet
from pointsman_scheduler.domain.flow_control.points import SaturationDetector
from pointsman_scheduler.plugins.detectors.stages import Stages, fullest


class ConcurrencyParams(Params):
    mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """What is counted; `hybrid` takes the fuller of both at each worker."""
    max_requests: int = Field(default=100, ge=1)
    """Open requests at which a worker is saturated."""
    max_tokens: int = Field(default=1_000_000, ge=1)
    """Prompt tokens of open requests at which a worker is saturated."""


class Concurrency(SaturationDetector):
    """Sum of what is open over the sum of what may be."""

    type_name: ClassVar[str] = "concurrency"
    params_type: ClassVar[type[Params]] = ConcurrencyParams

    def __init__(self, name: str, params: ConcurrencyParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params: Final = params
        self._stages: Final = Stages()

    def saturation(self, fleet: Fleet, now: float) -> float:
        requests = fleet.open / self._params.max_requests
        tokens = fleet.context_tokens / self._params.max_tokens
        match self._params.mode:
            case "requests":
                values = requests
            case "tokens":
                values = tokens
            case "hybrid":
                values = np.maximum(requests, tokens)
        # Each worker may hold the same, so the mean of the parts is the part of the sums.
        return fullest(values, np.ones(len(values), dtype=np.bool_), self._stages.of(fleet))
