"""Filters that keep the better workers, if any: `prefix-cache-affinity`, `slo-headroom`."""

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.plugins.producers.latency import PREDICTED_ITL_MS, PREDICTED_TTFT_MS, tightest_itl_ms


class PrefixAffinityParams(Params):
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Fraction of the prompt's full blocks that a worker must hold to be preferred."""
    exploration: float = Field(default=0.0, ge=0, le=1)
    """Probability that every worker passes, so that hot prefixes spread."""
    max_penalty_ms: float = Field(default=18000.0, ge=0)
    """Most milliseconds to the first token that affinity may cost over the best candidate; 0 for no bound."""
    prefill_throughput: float = Field(default=15928.0, gt=0)
    """Prompt tokens that an engine computes in a second."""


class PrefixAffinity(Filter[PrefixAffinityParams]):
    """Keeps the workers that hold at least `threshold` of the prompt, unless waiting for them costs more than
    `max_penalty_ms`. The time to the first token is estimated from the tokens to compute before it and
    `prefill_throughput`. If no worker holds that much, every worker passes (as in llm-d-router 0.10)."""

    type_name = "prefix-affinity"
    consumes = (MATCHED_TOKENS,)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        params = self.params
        whole = len(request.blocks) * request.facts.block_tokens
        if not whole:
            return None
        matched = candidates.take(request.get(MATCHED_TOKENS))
        sticky = matched >= params.threshold * whole
        if not sticky.any():
            return None
        if params.exploration and candidates.dice.uniform() < params.exploration:
            return None
        if params.max_penalty_ms:
            ttft_ms = (
                (candidates.prefill_tokens + request.facts.prompt_tokens - matched) / params.prefill_throughput * 1000
            )
            if ttft_ms[sticky].min() - ttft_ms.min() > params.max_penalty_ms:
                return None
        return Removal(sticky, f"holds less than {params.threshold:.0%} of the prompt")


class SloHeadroomParams(Params):
    exploration: float = Field(default=0.01, ge=0, le=1)
    """Probability that every worker passes, so that predictions of the others are tested."""


class SloHeadroom(Filter[SloHeadroomParams]):
    """Keeps the workers whose predicted latency is within the objectives. Every worker passes when none is, when the
    request has no objectives, and while predictions aren't trusted."""

    type_name = "slo-headroom"
    consumes = (PREDICTED_TTFT_MS, PREDICTED_ITL_MS)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        slo_ttft, slo_itl = request.facts.slo_ttft_ms, request.facts.slo_itl_ms
        if slo_ttft is None and slo_itl is None:
            return None
        ttft, itl = request.get(PREDICTED_TTFT_MS), request.get(PREDICTED_ITL_MS)
        # A comparison with NaN (no prediction) is false.
        keep = (ttft <= (slo_ttft or float("inf"))) & (itl <= tightest_itl_ms(slo_itl, candidates.fleet.workers))
        keep = keep if candidates.rows is None else keep[candidates.rows]
        if not keep.any() or candidates.dice.uniform() < self.params.exploration:
            return None

        def why(worker: Worker) -> str:
            row = worker.row
            return f"predicted {ttft[row]:.0f} ms to the first token, {itl[row]:.1f} ms between tokens"

        return Removal(keep, why)
