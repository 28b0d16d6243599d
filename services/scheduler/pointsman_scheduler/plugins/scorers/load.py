"""Scorers of load, where less is better: of the engine's queue, batch and cache (`queue`, `running`, `load-aware`,
`kv-utilization`, with formulas as in llm-d-router 0.10, `scheduling/scorer`), and of the expected cost of one request
more (`least-delay`, `dynamo-cost`)."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import FEW, Floats, Scores, greatest, least
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.producers.active_blocks import POTENTIAL_BLOCKS
from pointsman_scheduler.plugins.producers.delay import DELAY_COST


def fewest_first(figures: Floats) -> Scores:
    """1 for the least, 0 for the most, linear between; 1 for all when they are equal."""
    if len(figures) <= FEW:
        values = figures.tolist()
        fewest, most = min(values), max(values)
        if most == fewest:
            return [1.0] * len(values)
        spread = most - fewest
        return [(most - value) / spread for value in values]
    fewest, most = least(figures), greatest(figures)
    if most == fewest:
        return np.ones(len(figures))
    scores = most - figures
    scores /= most - fewest
    return scores


class QueueLength(Scorer):
    """Fewer requests waiting in the engine is better, relative to the other candidates."""

    type_name = "queue"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.take(candidates.fleet.waiting))


class Running(Scorer):
    """A smaller running batch is better, relative to the other candidates."""

    type_name = "running"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return fewest_first(candidates.take(candidates.fleet.running))


class LoadAwareParams(Params):
    threshold: int = Field(default=128, ge=1)
    """Waiting requests at which the score is 0."""


class LoadAware(Scorer[LoadAwareParams]):
    """0.5 for an empty queue, down to 0 at `threshold` requests: independent of the other candidates."""

    type_name = "load-aware"

    def setup(self) -> None:
        self._threshold = float(self.params.threshold)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return 0.5 * (1.0 - np.minimum(candidates.waiting / self._threshold, 1.0))


class KvUtilization(Scorer):
    """The free part of the KV cache."""

    type_name = "kv-utilization"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return 1.0 - candidates.kv_usage


class LeastDelay(Scorer):
    """1 for the least predicted delay, 0 for the most, in proportion between; all equal: 1."""

    type_name: ClassVar[str] = "least-delay"
    consumes = (DELAY_COST,)

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
        size = float(request.block_tokens)
        cached = candidates.take(request.get(MATCHED_TOKENS)) / size
        params = self.params
        prefill = (candidates.prefill_tokens + request.prompt_tokens) / size - params.overlap_score_credit * cached
        cost = params.prefill_load_scale * np.maximum(prefill, 0.0) + candidates.take(request.get(POTENTIAL_BLOCKS))
        if params.decode_active_request_weight:
            cost = cost + params.decode_active_request_weight * candidates.open
        return fewest_first(cost)
