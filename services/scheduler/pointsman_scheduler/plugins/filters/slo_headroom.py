"""`slo-headroom`: workers predicted to keep the request's objectives."""

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.plugins.producers.latency import PREDICTED_ITL_MS, PREDICTED_TTFT_MS


class SloHeadroomParams(Params):
    exploration: float = Field(default=0.01, ge=0, le=1)
    """Probability of letting everybody through, so that predictions of the others are put to the test."""


class SloHeadroom(Filter[SloHeadroomParams]):
    """Keeps the workers whose predicted latency is within the objectives; everybody when none is, when the request has
    no objectives, and while predictions aren't trusted."""

    type_name = "slo-headroom"
    consumes = (PREDICTED_TTFT_MS, PREDICTED_ITL_MS)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        slo_ttft, slo_itl = request.slo_ttft_ms, request.slo_itl_ms
        if slo_ttft is None and slo_itl is None:
            return None
        ttft, itl = request.get(PREDICTED_TTFT_MS), request.get(PREDICTED_ITL_MS)
        # A comparison with NaN, no prediction, is false.
        keep = (ttft <= (slo_ttft or float("inf"))) & (itl <= (slo_itl or float("inf")))
        keep = keep if candidates.rows is None else keep[candidates.rows]
        if not keep.any() or candidates.dice.uniform() < self.params.exploration:
            return None

        def why(worker: Worker) -> str:
            row = worker.row
            return f"predicted {ttft[row]:.0f} ms to the first token, {itl[row]:.1f} ms between tokens"

        return Removal(keep, why)
