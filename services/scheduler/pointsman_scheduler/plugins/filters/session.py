"""`session`: the worker that serves the request's session."""

from typing import ClassVar

import numpy as np

from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.session import SESSION_WORKER


class SessionFilter(Filter):
    """Keeps only the worker that serves the session, if it is among the candidates. Otherwise, and without a session,
    everybody: an answer elsewhere is better than none."""

    type_name: ClassVar[str] = "session"
    consumes = (SESSION_WORKER,)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        bound = candidates.fleet.find(request.get(SESSION_WORKER))
        if bound is None or not bound.present:
            return None
        keep = candidates.indices() == bound.row
        return Removal(keep, f"{bound.name} serves this session") if np.any(keep) else None
