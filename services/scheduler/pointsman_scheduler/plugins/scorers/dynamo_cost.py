"""`dynamo-cost`: the rule of NVIDIA Dynamo 1.6 as a scorer, for comparison side by side (`DefaultWorkerScorer`)."""

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.active_blocks import POTENTIAL_BLOCKS
from pointsman_scheduler.plugins.scorers.load import fewest_first


class DynamoCostParams(Params):
    overlap_score_credit: float = Field(default=1.0, ge=0)
    """Blocks that a cached block is worth."""
    prefill_load_scale: float = Field(default=1.0, ge=0)
    """Weight of prompt blocks to compute against blocks in use."""
    decode_active_request_weight: float = Field(default=0.0, ge=0)
    """Blocks that an open request counts for beside its own."""


class DynamoCost(Scorer[DynamoCostParams]):
    """Least cost first: `scale · max(prompt blocks to compute - credit · cached, 0) + blocks in use`, where prompt
    blocks to compute are those of open requests and of the whole prompt. Use it alone, with the picker `max-score`:
    scores keep the order of the costs and their ties."""

    type_name = "dynamo-cost"
    consumes = (MATCHED_TOKENS, POTENTIAL_BLOCKS)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        size = float(request.block_tokens)
        cached = candidates.take(request.get(MATCHED_TOKENS)) / size
        params = self.params
        prefill = (candidates.prefill_tokens + request.prompt_tokens) / size - params.overlap_score_credit * cached
        cost = params.prefill_load_scale * np.maximum(prefill, 0.0) + candidates.take(request.get(POTENTIAL_BLOCKS))
        if params.decode_active_request_weight:
            cost = cost + params.decode_active_request_weight * candidates.open
        return fewest_first(cost)
