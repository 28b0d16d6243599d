"""`subset`: the endpoints that a trusted proxy restricts the choice to (Endpoint Picker Protocol 004)."""

from typing import ClassVar

import numpy as np

from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.points import Filter, Removal
from pointsman_scheduler.domain.request import ScheduleRequest


class Subset(Filter):
    """Keeps the workers whose host, or host and port, the request's subset names. IPv6 with or without brackets."""

    type_name: ClassVar[str] = "subset"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        if request.subset is None:
            return None
        wanted = {entry.strip().lower() for entry in request.subset}
        keep = [
            worker.address in wanted or worker.host in wanted or f"[{worker.host}]" in wanted
            for worker in candidates.workers()
        ]
        return Removal(np.array(keep, dtype=np.bool_), "not in the subset that the proxy asked for")
