"""`prefix-affinity`: workers that hold most of the prompt already."""

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest


class PrefixAffinityParams(Params):
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Part of the prompt's full blocks that a worker must hold to be preferred."""
    exploration: float = Field(default=0.0, ge=0, le=1)
    """Probability of letting everybody through, so that hot prefixes spread."""
    max_penalty_ms: float = Field(default=18000.0, ge=0)
    """Most time to the first token that affinity may cost over the best candidate; 0 for no bound."""
    prefill_throughput: float = Field(default=15928.0, gt=0)
    """Prompt tokens that an engine computes in a second."""


class PrefixAffinity(Filter[PrefixAffinityParams]):
    """Keeps the workers that hold at least `threshold` of the prompt, unless waiting for them costs more than
    `max_penalty_ms`. The time to the first token is estimated as what is to be computed before it, by
    `prefill_throughput`. Nobody that holds so much: everybody passes (as in llm-d-router 0.10)."""

    type_name = "prefix-affinity"
    consumes = (MATCHED_TOKENS,)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        params = self.params
        whole = len(request.blocks) * request.block_tokens
        if not whole:
            return None
        matched = candidates.take(request.get(MATCHED_TOKENS))
        sticky = matched >= params.threshold * whole
        if not sticky.any():
            return None
        if params.exploration and candidates.dice.uniform() < params.exploration:
            return None
        if params.max_penalty_ms:
            ttft_ms = (candidates.prefill_tokens + request.prompt_tokens - matched) / params.prefill_throughput * 1000
            if ttft_ms[sticky].min() - ttft_ms.min() > params.max_penalty_ms:
                return None
        return Removal(sticky, f"holds less than {params.threshold:.0%} of the prompt")
