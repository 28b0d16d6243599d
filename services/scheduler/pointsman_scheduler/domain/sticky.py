"""Sessions that stay with their engine: a session with a live binding needs no filters and no scorers."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Exhausted, Run

STICKY: Final = "sticky"
"""The profile that a run of a session which stays has."""
FALLBACKS: Final = 2
"""Engines that the edge may try when the session's engine fails before its first byte: those with least to do."""
_QUEUE: Final = 5
_KV_USAGE: Final = 0.8
"""An engine with this queue, or this share of its KV cache in use, is saturated, as for the detector `utilization`."""
_GONE: Final = Exhausted(503, "server_error", "session_engine_gone", "rejected-session-engine-gone", 1.0)


@runtime_checkable
class BindsSessions(Protocol):
    """A plugin that knows which worker serves a session."""

    def bound_worker(self, session: str, now: float) -> str | None:
        """The worker; None for a session that is unknown or forgotten."""
        ...


class Sticky(NamedTuple):
    """The policy's `sticky`."""

    bound_worker: Callable[[str, float], str | None]
    """The worker that a session is bound to at a monotonic time."""
    unless: frozenset[str]
    """One or both of `saturated` and `gone`: where the request is decided as any other then."""

    def stay(self, request: ScheduleRequest, everyone: Candidates) -> Run | None:
        """The run of a session that stays with its engine; None for a request that is decided as any other. Raises
        Refusal when the engine is gone, and that is no exception."""
        facts, now = request.facts, everyone.now
        session = facts.session
        # A proxy's choice and an adapter restrict the engines, and a request that is decided again has met its engine.
        # One that is only sent again, because a scheduler died with it, has not.
        if session is None or facts.subset is not None or facts.workers is not None:
            return None
        if request.lora is not None or facts.decision > 1:
            return None
        name = self.bound_worker(session, now)
        if name is None:
            return None
        fleet = everyone.fleet
        worker = fleet.find(name)
        lacking = fleet.lacking(request.model, now) + fleet.unlisted(request.model)
        if worker is None or not worker.present or fleet.eligible_until[worker.row] < now or worker.row in lacking:
            if "gone" in self.unless:
                return None
            raise _GONE.refusal("The engine of this session is gone; begin a new session, or try again.")
        row = worker.row
        if "saturated" in self.unless and (fleet.waiting[row] >= _QUEUE or fleet.kv_usage[row] >= _KV_USAGE):
            return None
        return Run(STICKY, everyone, {}, chosen=[row, *_others(fleet, row, lacking, now)])


def _others(fleet: Fleet, row: int, lacking: list[int], now: float) -> list[int]:
    """The eligible engines with the fewest requests, without that of `row`."""
    if len(fleet.workers) == 1:
        return []
    load = fleet.waiting + fleet.running
    if not fleet.all_eligible(now):
        load[fleet.eligible_until < now] = np.inf
    load[row] = np.inf
    for each in lacking:
        load[each] = np.inf
    found: list[int] = []
    for _ in range(FALLBACKS):
        # Of equal ones the first, in every release of numpy and on every machine.
        least = int(load.argmin())
        if load.item(least) == np.inf:
            break
        found.append(least)
        load[least] = np.inf
    return found
