"""`subset`: the endpoints that a trusted proxy restricts the choice to (Endpoint Picker Protocol 004)."""

from typing import ClassVar

import numpy as np

from pointsman_core.subset import Place, named
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest


class Subset(Filter):
    """Keeps the workers that the request's subset names, by host or by host and port. IPv6 with or without brackets."""

    type_name: ClassVar[str] = "subset"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        if request.subset is None:
            return None
        keep = named([Place(worker.address, worker.host) for worker in candidates.workers()], request.subset)
        return Removal(np.array(keep, dtype=np.bool_), "not in the subset that the proxy asked for")
