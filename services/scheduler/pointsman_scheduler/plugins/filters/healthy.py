"""`healthy`: workers that serve, reported lately, and whose answers are no worse than their peers'."""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from pointsman_contracts.timing import TIMES
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import NEVER, Worker

_LEAVING: Final = ("draining", "asleep")
_OUT: Final = 9
_WELL, _SILENT, _NOT_READY, _UNREACHABLE, _EJECTED, _LACKING = range(6)
"""How little speaks for a worker, least first: reports may be lost, and an engine's own pages late or wrong, but an
ejected worker failed requests."""
_DEGRADED: Final[Sequence[str]] = (
    "no worker is known to be healthy",
    "no worker was heard lately: all get requests",
    "no worker is ready: all get requests",
    "no worker can be reached by its agent: all get requests",
    "every worker fails requests: they get them in turn",
    "every worker answers 404 for this model",
)


class HealthyWorkers(Filter):
    """Removes workers that are draining, asleep, not ready, unreachable for their agent, or silent; those that failed
    requests more often than their peers, or don't answer them, but for trials; those that answered 404 for the
    request's model while a peer served it; and those that list other models only, while a peer lists that one.

    When no worker is left, those pass for which most speaks: silent ones, then those that aren't ready, unreachable
    ones, and those that fail requests, in turn. When a signal is bad for all, it has more likely failed than all
    engines, and a breaker must never open for all. Draining and sleeping workers stay out, and those with
    another model.
    """

    type_name: ClassVar[str] = "healthy"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        fleet, now = candidates.fleet, candidates.now
        lacking = fleet.lacking(request.lora or request.model, now)
        unlisted = fleet.unlisted(request.model) if request.lora is None else ()
        if not lacking and not unlisted and fleet.all_eligible(now):
            return None
        name = request.lora or request.model

        def why(worker: Worker) -> str:
            if worker.row in unlisted:
                return f"lists other models than {name}, which a peer lists"
            if worker.row in lacking:
                return f"answered 404 for {name}, which a peer serves"
            return ailment(worker, now) or "healthy"

        keep = candidates.take(fleet.eligible_until) >= now
        if lacking:
            keep &= ~np.isin(candidates.indices(), lacking)
        if unlisted:
            keep &= ~np.isin(candidates.indices(), unlisted)
        if keep.any():
            return Removal(keep, why)
        ranks = [_LACKING if worker.row in lacking else _rank(worker, now) for worker in candidates.workers()]
        if unlisted:
            others = np.isin(candidates.indices(), unlisted)
            ranks = [_OUT if other else rank for rank, other in zip(ranks, others, strict=True)]
        best = min(ranks)
        keep = np.array([rank == best != _OUT for rank in ranks], dtype=np.bool_)
        if best == _OUT:
            return Removal(keep, why)
        return Removal(keep, why, _DEGRADED[best], in_turn=best == _EJECTED)


def _rank(worker: Worker, now: float) -> int:
    # One that drains and can't be reached has ended, as it was meant to.
    if worker.state in _LEAVING or (worker.report is not None and worker.report.draining is not None):
        return _OUT
    if worker.standing.ejected:
        return _EJECTED
    match worker.state:
        case "not_ready":
            return _NOT_READY
        case "unreachable":
            return _UNREACHABLE
        case _:
            return _WELL if now - worker.heard <= TIMES.worker_silent_s else _SILENT


def ailment(worker: Worker, now: float) -> str | None:
    """Why this filter removes a worker; None for a healthy one."""
    report = worker.report
    if report is not None and report.state != "serving":
        state = report.state.replace("_", " ")
        return f"{state}: {report.reason}" if report.reason else state
    if worker.heard == NEVER:
        return "no load report yet"
    silence = now - worker.heard
    if silence > TIMES.worker_silent_s:
        return f"silent for {silence:.1f} s"
    standing = worker.standing
    if not standing.ejected:
        return None
    verdict = "suspect" if standing.hung else "ejected"
    return f"{verdict}: {standing.reason}; tried again in {max(0.0, standing.retry_at - now):.1f} s"
