"""`utilization`: a worker is as full as max(queue / 5, KV use / 0.8) (as in llm-d-router 0.10). With it, the rules of
all detectors: a pool is saturated when each of its workers is, and as full as the fuller of its prefill and its decode
workers.

llm-d-router takes the mean of these values as they are, so one worker with a queue of five for each worker of the pool
closes the pool while the others are idle."""

import numpy as np
from pydantic import Field

from pointsman_contracts.timing import TIMES
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import FEW, Bools, Floats
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.flow_control import SaturationDetector
from pointsman_plugins.scheduling.worker import DECODE, PREFILL
from pointsman_scheduler.plugins.detectors.few_fullness import fullest_of_few, fullness_of_few, mean_fullness


class WorkerRoles:
    """Which workers run which stage, kept until the fleet changes. A worker that runs both counts in both; one that
    runs neither (encode) counts in none."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._epoch = -1
        self._masks: tuple[Bools, ...] = ()
        self.alike = False
        """Whether every worker runs the same stages, and some: those of the fleet that was asked about last."""

    def of(self, fleet: Fleet) -> tuple[Bools, ...]:
        """One mask for each stage that at least one worker runs, over the fleet's rows; a single mask for stages run by
        the same workers."""
        if self._fleet is not fleet or self._epoch != fleet.epoch:
            roles = np.array([worker.roles for worker in fleet.workers], dtype=np.int64)
            prefill, decode = (roles & PREFILL) != 0, (roles & DECODE) != 0
            masks = [prefill] if np.array_equal(prefill, decode) else [prefill, decode]
            self._masks = tuple(mask for mask in masks if mask.any())
            self.alike = all(mask.all() for mask in masks)
            self._fleet, self._epoch = fleet, fleet.epoch
        return self._masks


def fullest(values: Floats, counted: Bools, stages: tuple[Bools, ...]) -> float:
    """The fullest stage by the workers that count, as `mean_fullness`; 0 where none does."""
    saturation = 0.0
    for stage in stages:
        chosen = values[stage & counted]
        if len(chosen):
            least = float(chosen.min())
            saturation = max(saturation, least if least >= 1.0 else float(np.minimum(chosen, 1.0).mean()))
    return saturation


class UtilizationDetectorParams(Params):
    queue: float = Field(default=5.0, gt=0)
    """Requests in an engine's queue at which it is saturated."""
    kv: float = Field(default=0.8, gt=0, le=1)
    """Used part of the KV cache at which it is saturated."""
    burst: int = Field(default=16, ge=0)
    """Requests that an engine with an empty queue takes without a report that it did; a quarter of those that it runs,
    or the requests with prompts that fit in its next pass, if that is more."""
    pass_tokens: int = Field(default=8192, ge=1)
    """Prompt tokens that an engine computes in one pass (vLLM's `max_num_batched_tokens`)."""


class UtilizationDetector(SaturationDetector[UtilizationDetectorParams]):
    """Reads the engines' reports, corrected by the requests that were sent since: a request that leaves the queue in
    one turn counts for the next. No worker counts for more than 1, so the pool is saturated only when each is. A worker
    that may not be chosen, for its silence or otherwise, doesn't count. Neither does one that reports no load: a pool
    of those is never saturated; `concurrency` bounds what is open there.

    A request that no report shows yet waits in the engine's queue if others do; in an empty queue the first of them
    go on to run.
    """

    type_name = "utilization"

    def setup(self) -> None:
        self._stages = WorkerRoles()
        self._full_cache = self.params.kv

    def saturation(self, fleet: Fleet, now: float) -> float:
        stages = self._stages.of(fleet)
        # A worker may still be chosen for a while after all fall silent; its last report is nevertheless stale.
        silent_before = now - TIMES.worker_silent_s
        if len(fleet.workers) > FEW:
            figures = (
                fleet.waiting, fleet.prefill_tokens, fleet.reported_waiting, fleet.reported_running, fleet.kv_usage,
            )  # fmt: skip
            counted = (fleet.eligible_until >= now) & (fleet.heard >= silent_before)
            counted[list(fleet.opaque)] = False
            counted[[worker.row for worker in fleet.ejected]] = False
            return fullest(_fullness(figures, self.params), counted, stages)
        waiting, kv_usage = fleet.waiting.tolist(), fleet.kv_usage.tolist()
        if any(waiting):
            columns = fleet.prefill_tokens, fleet.reported_waiting, fleet.reported_running
            values = fullness_of_few([waiting, *[column.tolist() for column in columns], kv_usage], self.params)
        else:
            full = self._full_cache
            values = [used / full for used in kv_usage]
        if fleet.fresh and not fleet.opaque and not fleet.ejected and fleet.all_eligible(now):
            if self._stages.alike:
                return mean_fullness(values)
            return fullest_of_few(values, stages)
        opaque, until = fleet.opaque, fleet.eligible_until.tolist()
        known: list[float | None] = [*values]
        for row, heard in enumerate(fleet.heard.tolist()):
            if until[row] < now or heard < silent_before or row in opaque:
                known[row] = None
        for worker in fleet.ejected:  # one may be chosen for a trial
            known[worker.row] = None
        return fullest_of_few(known, stages)


def _fullness(figures: tuple[Floats, ...], params: UtilizationDetectorParams) -> Floats:
    """The fullness of each worker."""
    waiting, prefill_tokens, reported_waiting, reported_running, kv_usage = figures
    # Of the requests before prefill, the next pass takes a fraction equal to its tokens over theirs.
    passing = waiting * (params.pass_tokens / _greater(prefill_tokens, float(params.pass_tokens)))
    absorbed = _greater(_greater(passing, float(params.burst)), reported_running / 4.0)
    queue = _greater(waiting - absorbed * (reported_waiting <= 0.0), 0.0)
    by_queue, by_cache = queue / params.queue, kv_usage / params.kv
    return by_queue + (by_cache - by_queue) * (by_cache > by_queue)


def _greater(one: Floats, other: Floats | float) -> Floats:
    return one + (other - one) * (other > one)
