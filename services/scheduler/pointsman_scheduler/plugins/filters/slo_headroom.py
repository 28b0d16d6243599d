"""`slo-headroom`: workers predicted to keep the request's objectives."""

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.points import Filter, Removal
from pointsman_scheduler.domain.request import ScheduleRequest
from pointsman_scheduler.domain.worker import Worker
from pointsman_scheduler.plugins.producers.latency import PREDICTED_ITL_MS, PREDICTED_TTFT_MS


class SloHeadroomParams(Params):
    exploration: float = Field(default=0.01, ge=0, le=1)
    """Probability of letting everybody through, so that predictions of the others are put to the test."""


class SloHeadroom(Filter):
    """Keeps the workers whose predicted latency is within the objectives; everybody when none is, when the request has
    no objectives, and while predictions aren't trusted."""

    type_name: ClassVar[str] = "slo-headroom"
    params_type: ClassVar[type[Params]] = SloHeadroomParams
    consumes = (PREDICTED_TTFT_MS, PREDICTED_ITL_MS)

    def __init__(self, name: str, params: SloHeadroomParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._exploration: Final = params.exploration

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        slo_ttft, slo_itl = request.slo_ttft_ms, request.slo_itl_ms
        if slo_ttft is None and slo_itl is None:
            return None
        ttft, itl = request.get(PREDICTED_TTFT_MS), request.get(PREDICTED_ITL_MS)
        # A comparison with NaN, no prediction, is false.
        keep = (ttft <= (slo_ttft or float("inf"))) & (itl <= (slo_itl or float("inf")))
        keep = keep if candidates.rows is None else keep[candidates.rows]
        if not keep.any() or candidates.dice.uniform() < self._exploration:
            return None

        def why(worker: Worker) -> str:
            row = worker.row
            return f"predicted {ttft[row]:.0f} ms to the first token, {itl[row]:.1f} ms between tokens"

        return Removal(keep, why)
