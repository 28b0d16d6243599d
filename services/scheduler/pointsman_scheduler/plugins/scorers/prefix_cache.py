"""`prefix-cache`: how much of the prompt the worker is believed to have computed already."""

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.arrays import Floats
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.points import MATCHED_TOKENS, Scorer
from pointsman_scheduler.domain.request import ScheduleRequest


class PrefixCacheParams(Params):
    match_length_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight of the matched length in tokens against the matched part of the prompt."""
    match_length_scale: int = Field(default=8192, ge=1)
    """Matched tokens at which the length counts in full."""


class PrefixCache(Scorer):
    """`(1-w)·ratio + w·min(1, matched/scale)²`, where ratio is matched tokens by tokens in full blocks, so that a
    prompt held as far as blocks can hold it scores 1 (as in llm-d-router 0.10). 0 for a prompt shorter than a block."""

    type_name: ClassVar[str] = "prefix-cache"
    params_type: ClassVar[type[Params]] = PrefixCacheParams
    consumes = (MATCHED_TOKENS,)

    def __init__(self, name: str, params: PrefixCacheParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._weight: Final = params.match_length_weight
        self._scale: Final = float(params.match_length_scale)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        matched = candidates.take(request.get(MATCHED_TOKENS))
        whole = len(request.blocks) * request.block_tokens
        ratio = matched / float(whole or 1)
        if not self._weight:
            return ratio
        return (1.0 - self._weight) * ratio + self._weight * np.minimum(matched / self._scale, 1.0) ** 2
