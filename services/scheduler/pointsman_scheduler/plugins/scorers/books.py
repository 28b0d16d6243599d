"""Scorers of what is on the schedulers' books: `active-requests`, `token-load`, `no-hit-lru`
(formulas as in llm-d-router 0.10, `scheduling/scorer`)."""

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, ResponseObserver, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold


class ActiveRequestsParams(Params):
    idle_threshold: int = Field(default=0, ge=0)
    """Up to this many open requests, a worker counts as idle."""
    max_busy_score: float = Field(default=1.0, ge=0, le=1)
    """Upper bound of the score of a worker that isn't idle."""


class ActiveRequests(Scorer[ActiveRequestsParams]):
    """1 for idle workers; for the others `(most - open) / most · max_busy_score`."""

    type_name = "active-requests"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        count = candidates.open
        most = float(count.max())
        if most <= self.params.idle_threshold:
            return np.ones(candidates.size)
        return np.where(count <= self.params.idle_threshold, 1.0, (most - count) / most * self.params.max_busy_score)


class TokenLoadParams(Params):
    threshold: int = Field(default=4_194_304, ge=1)
    """Prompt tokens at which the score is 0."""


class TokenLoad(Scorer[TokenLoadParams]):
    """`1 - min(1, tokens / threshold)`, where tokens are those to compute until this request's first one: of the
    requests on the books and of its own prompt, without the prefix that the worker holds."""

    type_name = "token-load"
    consumes = (MATCHED_TOKENS,)

    def setup(self) -> None:
        self._threshold = float(self.params.threshold)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        own = np.maximum(request.facts.prompt_tokens - candidates.take(request.get(MATCHED_TOKENS)), 0.0)
        return 1.0 - np.minimum((candidates.prefill_tokens + own) / self._threshold, 1.0)


class NoHitLru(Scorer, ResponseObserver):
    """Spreads prompts that no worker holds: 1 for the candidate with the oldest such prompt (those that never had one
    first), down to 0 for the newest, in equal steps. 0.5 for all when a worker holds a part of the prompt."""

    type_name = "no-hit-lru"
    consumes = (MATCHED_TOKENS,)

    def setup(self) -> None:
        self._epoch = -1
        self._turn = 0
        self._last: dict[str, int] = {}
        self._column: Floats = np.empty(0)
        """Turn of each worker's last cold prompt; 0 for never."""

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        if candidates.take(request.get(MATCHED_TOKENS)).any():
            return np.full(candidates.size, 0.5)
        if candidates.size == 1:
            return np.ones(1)
        fleet = candidates.fleet
        if self._epoch != fleet.epoch:
            self._last = {name: turn for name, turn in self._last.items() if fleet.find(name) is not None}
            self._column = np.array([self._last.get(name, 0) for name in fleet.names], dtype=np.float64)
            self._epoch = fleet.epoch
        order = np.argsort(candidates.take(self._column), kind="stable")
        scores = np.empty(candidates.size)
        scores[order] = np.linspace(1.0, 0.0, candidates.size)
        return scores

    def chosen(self, hold: Hold, now: float) -> None:
        if hold.change.leg or hold.change.uncached_tokens < hold.change.prompt_tokens:
            return
        self._turn += 1
        self._last[hold.worker.name] = self._turn
        row = hold.worker.row
        if 0 <= row < len(self._column):
            self._column[row] = self._turn
