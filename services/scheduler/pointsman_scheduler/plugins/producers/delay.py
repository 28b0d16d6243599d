"""`delay-prediction`: the delay that each choice causes, to the request and to the others on that worker."""

from typing import Final

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Key
from pointsman_delay import DelayForecast, PassSizeSearch
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Producer, ResponseObserver
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.plugins.handlers.disaggregated import PREFILL
from pointsman_scheduler.plugins.producers.hinted_lengths import HintedLengths
from pointsman_scheduler.plugins.producers.preludes import Preludes
from pointsman_scheduler.plugins.producers.rank_shares import RankShares

DELAY_COST: Final[Key[Floats]] = Key("delay-cost", np.ndarray)
"""For each worker of the fleet, the delay that choosing it causes, in milliseconds times requests; tokens until the
model of the engine is trusted."""
DELAY_MODEL: Final[Key[PassSizeSearch]] = Key("delay-model", PassSizeSearch)
"""The model that `DELAY_COST` is predicted by, laid out for the fleet's rows."""


class DelayPredictionParams(Params):
    batch_tokens: int = Field(default=8192, ge=64)
    """Prompt tokens that an engine computes in one pass, its `max_num_batched_tokens`: the search for the size
    that explains its answers begins."""
    first_token_weight: float = Field(default=16.0, gt=0)
    """How much worse a wait for the first token is than the same wait within an answer."""


class DelayPrediction(Producer[DelayPredictionParams], ResponseObserver[DelayPredictionParams], DelayForecast):
    """Keeps a shadow of each engine, learns how long its passes take, and predicts from both."""

    type_name = "delay-prediction"
    consumes = (MATCHED_TOKENS,)
    produces = (DELAY_COST, DELAY_MODEL)

    def setup(self) -> None:
        self.estimator = PassSizeSearch(self.params.batch_tokens, self.params.first_token_weight)
        self.preludes = Preludes(self.estimator)
        self.rank_shares = RankShares()
        self.hints = HintedLengths()
        self._epoch = -1

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        fleet = everyone.fleet
        if fleet.epoch != self._epoch:
            self._epoch = fleet.epoch
            self.estimator.lay_out([(worker.life, float(worker.capacity_tokens or np.inf)) for worker in fleet.workers])
            self.rank_shares.set_workers(fleet.workers)
        prompt, blocks = max(1, request.facts.prompt_tokens), request.blocks
        matched = request.get(MATCHED_TOKENS)
        if request.fetched is not None:
            matched = request.reached(matched)
        prefix: int | None = None
        if len(blocks) and request.bound is None:  # one that waited was counted when it came
            depth = int(matched.item(matched.argmax())) // request.facts.block_tokens
            prefix = blocks.item(depth - 1) if depth else None
        now = everyone.now * 1000.0
        facts, estimator, preludes = request.facts, self.estimator, self.preludes
        if facts.dry_run:
            # Asking moves the shadows on, and counts a use of the prefix.
            estimator = estimator.copy()
            preludes = preludes.copy(estimator)
        if preludes.waiting:
            preludes.send_due(now)
        best = estimator.best
        limit = facts.max_output_tokens
        if facts.hinted_output_tokens is not None:
            limit = request.believed_output = self.hints.believe_length(
                facts.fairness_id, facts.hinted_output_tokens, best.expected_output, limit
            )
        costs = best.costs(prompt, matched, now, limit, prefix)
        if request.fetched is not None or request.lora is not None:
            costs = preludes.add_costs(costs, request, fleet, now)
        if self.rank_shares.has_ranks:
            uncached = prompt - np.minimum(matched, prompt - 1.0)
            costs = self.rank_shares.add_costs(costs, uncached, best, now)
        request.put(DELAY_MODEL, estimator)
        request.put(DELAY_COST, costs)

    def laid_out(self, epoch: int) -> bool:
        """Whether the estimator's workers are those of the fleet at this epoch."""
        return self._epoch == epoch

    def chosen(self, hold: Hold, now: float) -> None:
        tokens, uncached = hold.change.prompt_tokens, hold.change.uncached_tokens
        prompt, cached = max(1, tokens), tokens - uncached
        if cached >= prompt:
            cached = prompt - 1
        estimator, now_ms, change = self.estimator, now * 1000.0, hold.change
        if self.rank_shares.has_ranks:
            self.rank_shares.note_prompt(hold.worker.life, prompt - cached, estimator.best, now_ms)
        if not ((change.fetched or change.lora) and self.preludes.begin_prelude(hold, now_ms, prompt, cached)):
            estimator.sent(hold.worker.life, hold.key, now_ms, prompt, cached, told=change.streamed)
        if change.itl_ms is not None or estimator.paces:
            estimator.pace_prompts(
                life=hold.worker.life,
                key=hold.key,
                itl=change.itl_ms,
                prompt=prompt,
                # Those that late binding never holds back would hold others back for ever.
                uncached=prompt - cached if change.streamed and change.lora is None else 0,
                now=now_ms,
            )
        if change.leg == PREFILL and change.streamed:
            estimator.await_prompt((*hold.request, ""), now_ms, prompt)

    def started(self, hold: Hold, now: float, ttft_ms: float) -> None:
        if hold.change.fetched or hold.change.lora:
            self.preludes.end_prelude(hold, now * 1000.0, ttft_ms)
        self.estimator.started(hold.key, now * 1000.0)

    def gone(self, hold: Hold, now: float) -> None:
        if hold.change.fetched or hold.change.lora:
            self.preludes.drop_request(hold)
        if hold.handed_ms is not None:
            now_ms = now * 1000.0
            self.estimator.handed_over(hold.key, (*hold.request, ""), now_ms - hold.handed_ms, now_ms)
        if hold.change.hinted_tokens is not None and hold.answer_tokens is not None and not hold.change.leg:
            self.hints.learn_length(hold.change.flow or "", hold.change.hinted_tokens, hold.answer_tokens)
        self.estimator.paces.drop_request(hold.key)
        self.estimator.ended(hold.key, now * 1000.0, hold.answer_tokens)
