"""`healthy`: workers that serve, reported lately, and answered the last attempt."""

from typing import ClassVar, Final

import numpy as np

from pointsman_contracts.timing import TIMES
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import NEVER, Worker

_REFUSING: Final = ("draining", "unreachable")


class HealthyWorkers(Filter):
    """Removes workers that are draining, unreachable for their agent, silent, or demoted.

    When no worker is left, silent and demoted ones pass: when all are silent, the bus or the agents have more likely
    failed than all engines, and a breaker must never open for all. Draining and unreachable ones stay out.
    """

    type_name: ClassVar[str] = "healthy"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        fleet, now = candidates.fleet, candidates.now
        if fleet.all_eligible(now):
            return None

        def why(worker: Worker) -> str:
            return ailment(worker, now) or "healthy"

        keep = candidates.take(fleet.eligible_until) >= now
        if keep.any():
            return Removal(keep, why)
        keep = np.array([worker.state not in _REFUSING for worker in candidates.workers()], dtype=np.bool_)
        degraded = "no worker is known to be healthy" if keep.any() else None
        return Removal(keep, why, degraded)


def ailment(worker: Worker, now: float) -> str | None:
    """Why this filter removes a worker; None for a healthy one."""
    report = worker.report
    if report is not None and report.state in _REFUSING:
        return f"{report.state}: {report.reason}" if report.reason else report.state
    if worker.heard == NEVER:
        return "no load report yet"
    silence = now - worker.heard
    if silence > TIMES.worker_silent_s:
        return f"silent for {silence:.1f} s"
    standing = worker.standing
    if not standing.demoted:
        return None
    return f"demoted after {standing.failures} failure(s), tried again in {max(0.0, standing.retry_at - now):.1f} s"
