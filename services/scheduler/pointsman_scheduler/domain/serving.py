"""Whether a worker serves a model, and how many of a pool may get requests."""

from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.worker import DECODE, NEVER, Worker

_LEAVING: Final = ("asleep", "draining")
_NOT_SERVING: Final = (*_LEAVING, "not_ready", "unreachable")


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


def answers(worker: Worker) -> bool:
    """Whether requests end at the worker: engines that only compute prompts or encode answer none. One whose role isn't
    known is taken to."""
    return bool(worker.roles & DECODE) or not worker.roles


def count_endpoints(fleet: Fleet, now: float, *, waking: bool) -> tuple[int, int]:
    """Workers that may answer requests, and those that would if they didn't sleep. `waking`: those that sleep can be
    woken. Then workers that aren't ready or can't be reached don't count while another one sleeps: the one that is
    woken will serve. Otherwise they do, because a signal that is bad for all has more likely failed than all
    engines."""
    workers = fleet.workers
    if fleet.all_eligible(now):
        return len(workers), 0
    states = [worker.state for worker in workers if answers(worker)] or [worker.state for worker in workers]
    asleep = states.count("asleep")
    if not asleep:
        return len(states), 0
    out = _NOT_SERVING if waking else _LEAVING
    return sum(state not in out for state in states), asleep
