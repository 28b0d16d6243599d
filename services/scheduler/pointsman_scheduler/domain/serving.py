"""Whether a worker serves a model."""

from pointsman_contracts.timing import TIMES
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.worker import DECODE, NEVER, Worker


def may_serve(fleet: Fleet, worker: Worker, name: str, now: float) -> bool:
    """Whether the worker answers, is healthy, and isn't known to lack this model or adapter."""
    return (
        worker.state == "serving"
        and not worker.standing.ejected
        and bool(worker.roles & DECODE)
        and (now - worker.heard <= TIMES.worker_silent_s or now <= worker.excused_until)
        and worker.lacking.get(name, NEVER) <= now
        and worker.row not in fleet.unlisted(name)
    )
