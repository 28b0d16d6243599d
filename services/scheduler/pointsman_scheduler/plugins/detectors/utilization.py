"""`utilization`: mean over workers of max(queue / 5, KV use / 0.8) (reasons as in llm-d-router 0.10)."""

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.fleet import SILENT_AFTER_S, Fleet
from pointsman_scheduler.domain.flow_control.points import SaturationDetector
from pointsman_scheduler.plugins.detectors.stages import Stages, fullest


class UtilizationParams(Params):
    queue: float = Field(default=5.0, gt=0)
    """Requests waiting in an engine at which it is saturated."""
    kv: float = Field(default=0.8, gt=0, le=1)
    """Used part of the KV cache at which it is saturated."""
    burst: int = Field(default=16, ge=0)
    """Requests that an engine with an empty queue takes without a report that it did; a quarter of those that it runs,
    or those whose prompts fit in its next pass, if that is more."""
    pass_tokens: int = Field(default=8192, ge=1)
    """Prompt tokens that an engine computes in one pass (vLLM's `max_num_batched_tokens`)."""


class Utilization(SaturationDetector):
    """Reads what engines report, corrected by the requests that were sent since: what leaves the queue in one turn
    counts for the next. A worker that may not be chosen, for its silence or otherwise, doesn't count.

    A request that no report shows yet waits in the engine's queue if others do; in an empty queue the first of them
    go on to run.
    """

    type_name: ClassVar[str] = "utilization"
    params_type: ClassVar[type[Params]] = UtilizationParams

    def __init__(self, name: str, params: UtilizationParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params: Final = params
        self._stages: Final = Stages()

    def saturation(self, fleet: Fleet, now: float) -> float:
        params = self._params
        # Of the requests that are ahead of the prefill, the next pass takes as many as its tokens are of theirs.
        passing = fleet.waiting * (params.pass_tokens / np.maximum(fleet.prefill_tokens, params.pass_tokens))
        absorbed = np.maximum(np.maximum(passing, params.burst), fleet.reported_running / 4)
        absorbed *= fleet.reported_waiting == 0
        queue = np.maximum(fleet.waiting - absorbed, 0)
        values = np.maximum(queue / params.queue, fleet.kv_usage / params.kv)
        # A worker may be chosen for a while after a silence of all; its last report still says nothing.
        counted = (fleet.eligible_until >= now) & (fleet.heard >= now - SILENT_AFTER_S)
        return fullest(values, counted, self._stages.of(fleet))
