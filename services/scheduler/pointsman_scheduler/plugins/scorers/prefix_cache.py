"""`prefix-cache`: how much of the prompt the worker is believed to have computed already."""

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest


class PrefixCacheParams(Params):
    match_length_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight of the matched length in tokens against the matched part of the prompt."""
    match_length_scale: int = Field(default=8192, ge=1)
    """Matched tokens at which the length counts in full."""


class PrefixCache(Scorer[PrefixCacheParams]):
    """`(1-w)·ratio + w·min(1, matched/scale)²`, where ratio is matched tokens by tokens in full blocks, so that a
    prompt held as far as blocks can hold it scores 1 (as in llm-d-router 0.10). 0 for a prompt shorter than a block."""

    type_name = "prefix-cache"
    consumes = (MATCHED_TOKENS,)

    def setup(self) -> None:
        self._scale = float(self.params.match_length_scale)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        matched = candidates.take(request.get(MATCHED_TOKENS))
        whole = len(request.blocks) * request.block_tokens
        ratio = matched / float(whole or 1)
        weight = self.params.match_length_weight
        return ratio if not weight else (1.0 - weight) * ratio + weight * np.minimum(matched / self._scale, 1.0) ** 2
