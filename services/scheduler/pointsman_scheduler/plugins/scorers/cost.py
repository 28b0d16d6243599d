"""Scorers by expected cost: `prefix-cache`, `least-delay`, `dynamo-cost`."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Floats, Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.active_blocks import POTENTIAL_BLOCKS
from pointsman_scheduler.plugins.producers.delay import DELAY_COST
from pointsman_scheduler.plugins.scorers.load import fewest_first


class PrefixCacheParams(Params):
    match_length_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight of the matched length in tokens against the matched part of the prompt."""
    match_length_scale: int = Field(default=8192, ge=1)
    """Matched tokens at which the length counts in full."""


class PrefixCache(Scorer[PrefixCacheParams]):
    """`(1-w)·ratio + w·min(1, matched/scale)²`, where ratio is matched tokens over tokens in full blocks, so that a
    prompt held as far as blocks can hold it scores 1 (as in llm-d-router 0.10). 0 for a prompt shorter than a block."""

    type_name = "prefix-cache"
    consumes = (MATCHED_TOKENS,)

    def setup(self) -> None:
        self._scale = float(self.params.match_length_scale)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        matched = candidates.take(request.get(MATCHED_TOKENS))
        whole = len(request.blocks) * request.facts.block_tokens
        ratio = matched / float(whole or 1)
        weight = self.params.match_length_weight
        return ratio if not weight else (1.0 - weight) * ratio + weight * np.minimum(matched / self._scale, 1.0) ** 2


class LeastDelay(Scorer):
    """1 for the least predicted delay, 0 for the most, in proportion between; all equal: 1."""

    type_name: ClassVar[str] = "least-delay"
    consumes = (DELAY_COST,)
    bounded = True

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.take(request.get(DELAY_COST)))


class DynamoCostParams(Params):
    overlap_score_credit: float = Field(default=1.0, ge=0)
    """Blocks that a cached block is worth."""
    prefill_load_scale: float = Field(default=1.0, ge=0)
    """Weight of prompt blocks to compute against blocks in use."""
    decode_active_request_weight: float = Field(default=0.0, ge=0)
    """Number of blocks that an open request counts for, beside its own."""


class DynamoCost(Scorer[DynamoCostParams]):
    """Least cost first: `scale · max(prompt blocks to compute - credit · cached, 0) + blocks in use`, where prompt
    blocks to compute are those of open requests and of the whole prompt. Use it alone, with the picker `max-score`:
    scores keep the order of the costs and their ties."""

    type_name = "dynamo-cost"
    consumes = (MATCHED_TOKENS, POTENTIAL_BLOCKS)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        size = float(request.facts.block_tokens)
        cached = candidates.take(request.get(MATCHED_TOKENS)) / size
        params = self.params
        prefill = (
            candidates.prefill_tokens + request.facts.prompt_tokens
        ) / size - params.overlap_score_credit * cached
        cost = params.prefill_load_scale * np.maximum(prefill, 0.0) + candidates.take(request.get(POTENTIAL_BLOCKS))
        if params.decode_active_request_weight:
            cost = cost + params.decode_active_request_weight * candidates.open
        return fewest_first(cost)
