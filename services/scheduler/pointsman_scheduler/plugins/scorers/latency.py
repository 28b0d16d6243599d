"""`latency`: the predicted latency of the request, against its objectives."""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Bools, Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.latency import PREDICTED_ITL_MS, PREDICTED_TTFT_MS, tightest_itl_ms
from pointsman_scheduler.plugins.scorers.load import fewest_first


class PredictedLatencyParams(Params):
    ttft_weight: float = Field(default=0.8, ge=0)
    """Weight of the time to the first token."""
    itl_weight: float = Field(default=0.2, ge=0)
    """Weight of the time between tokens."""
    prefer: Literal["least-headroom", "most-headroom"] = "least-headroom"
    """Order among workers that meet the objectives: pack them tightly, or take the fastest."""
    kv_weight: float = Field(default=1.0, ge=0)
    """Weight of the free KV cache, until predictions are trusted."""
    queue_weight: float = Field(default=1.0, ge=0)
    """Weight of a short queue, until predictions are trusted."""
    prefix_weight: float = Field(default=1.0, ge=0)
    """Weight of the cached prefix, until predictions are trusted."""

    @model_validator(mode="after")
    def _weighs_something(self) -> "PredictedLatencyParams":
        if not self.ttft_weight + self.itl_weight or not self.kv_weight + self.queue_weight + self.prefix_weight:
            raise ValueError("at least one weight of each group must be above 0")
        return self


class PredictedLatency(Scorer[PredictedLatencyParams]):
    """With objectives on the request: workers predicted to meet them score in (0.5, 1], the others in [0, 0.5], higher
    for a smaller miss. Without objectives: the least predicted latency scores 1. Without predictions: free KV cache,
    short queue and cached prefix are weighed (as in llm-d-router 0.10)."""

    type_name = "latency"
    consumes = (MATCHED_TOKENS, PREDICTED_TTFT_MS, PREDICTED_ITL_MS)

    def setup(self) -> None:
        total = self.params.ttft_weight + self.params.itl_weight
        self._ttft_weight = self.params.ttft_weight / total
        self._itl_weight = self.params.itl_weight / total

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        ttft = candidates.take(request.get(PREDICTED_TTFT_MS))
        itl = candidates.take(request.get(PREDICTED_ITL_MS))
        if np.isnan(ttft).any() or np.isnan(itl).any():
            return self._by_load(request, candidates)
        if request.facts.slo_ttft_ms is None and request.facts.slo_itl_ms is None:
            return self._ttft_weight * _fewest_first(ttft) + self._itl_weight * _fewest_first(itl)
        spare_ttft = (request.facts.slo_ttft_ms or np.inf) - ttft
        spare_itl = candidates.take(tightest_itl_ms(request.facts.slo_itl_ms, candidates.fleet.workers)) - itl
        keeps = (spare_ttft >= 0) & (spare_itl >= 0)
        scores = np.zeros(candidates.size)
        if keeps.any():
            tight = self._combined(spare_ttft, spare_itl, keeps)
            scores[keeps] = 0.51 + 0.49 * (tight if self.params.prefer == "least-headroom" else 1.0 - tight)
        misses = ~keeps
        if misses.any():
            # An objective that is met doesn't make up for one that is missed.
            missed = self._combined(np.minimum(spare_ttft, 0.0), np.minimum(spare_itl, 0.0), misses)
            scores[misses] = 0.5 * (1.0 - missed)
        return scores

    def _combined(self, spare_ttft: Floats, spare_itl: Floats, among: Bools) -> Floats:
        """1 for the least spare time among these, 0 for the most."""
        return self._ttft_weight * _least_first(spare_ttft[among]) + self._itl_weight * _least_first(spare_itl[among])

    def _by_load(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        params = self.params
        whole = float(len(request.blocks) * request.facts.block_tokens or 1)
        scores = params.kv_weight * (1.0 - candidates.kv_usage)
        scores = scores + params.queue_weight * _fewest_first(candidates.waiting)
        scores = scores + params.prefix_weight * candidates.take(request.get(MATCHED_TOKENS)) / whole
        return scores / (params.kv_weight + params.queue_weight + params.prefix_weight)


def _fewest_first(figures: Floats) -> Floats:
    return np.asarray(fewest_first(figures))


def _least_first(spare: Floats) -> Floats:
    return _fewest_first(spare) if np.isfinite(spare).all() else np.zeros(len(spare))
