"""`latency-prediction`: time to the first token and between tokens on each worker, learnt from earlier requests."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Key
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Producer, ResponseObserver
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold, HoldKey, Worker
from pointsman_scheduler.domain.regression import RecursiveLeastSquares

PREDICTED_TTFT_MS: Final[Key[Floats]] = Key("predicted-ttft-ms", np.ndarray)
"""Milliseconds to the first token on each worker of the fleet; NaN without enough observations."""
PREDICTED_ITL_MS: Final[Key[Floats]] = Key("predicted-itl-ms", np.ndarray)
"""Milliseconds between tokens on each worker of the fleet; NaN without enough observations."""

_LEAST_MS: Final = 0.1


def tightest_itl_ms(own: float | None, workers: Sequence[Worker]) -> Floats:
    """For each worker, the shortest time between tokens that is promised to its open answers and to one more, whose own
    is `own`: that one slows the others. Infinite where the one more has none (as in llm-d-router 0.10)."""
    if own is None:
        return np.full(len(workers), np.inf)
    promised = [[hold.change.itl_ms or own for hold in worker.holds.values()] for worker in workers]
    return np.array([min(own, *each) if each else own for each in promised])


class LatencyPredictionParams(Params):
    trusted_after: int = Field(default=30, ge=1)
    """Observations before predictions are given."""


class _Chosen(NamedTuple):
    at: float
    ttft: Floats
    itl: Floats
    ttft_ms: float | None = None


class LatencyPrediction(Producer[LatencyPredictionParams], ResponseObserver[LatencyPredictionParams]):
    """Two linear models for the pool. The first token waits for the prompt's own uncached tokens, for those of
    requests before it, and for the running batch; later tokens for the running batch and its context."""

    type_name = "latency-prediction"
    consumes = (MATCHED_TOKENS,)
    produces = (PREDICTED_TTFT_MS, PREDICTED_ITL_MS)

    def setup(self) -> None:
        # Priors: a mid-size model on one accelerator computes about 15,000 prompt tokens a second, and a token in
        # 10 ms; deviations leave room for a factor of ten.
        self._ttft = RecursiveLeastSquares((20.0, 65.0, 65.0, 5.0), (20.0, 65.0, 65.0, 20.0))
        self._itl = RecursiveLeastSquares((6.0, 1.0, 2.0), (10.0, 5.0, 10.0))
        self._chosen: dict[HoldKey, _Chosen] = {}

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        running = everyone.running
        ttft = np.ones((everyone.size, 4))
        ttft[:, 1] = np.maximum(request.facts.prompt_tokens - request.get(MATCHED_TOKENS), 0.0) / 1000.0
        ttft[:, 2] = everyone.prefill_tokens / 1000.0
        ttft[:, 3] = running / 10.0
        itl = np.ones((everyone.size, 3))
        itl[:, 1] = (running + 1.0) / 10.0
        itl[:, 2] = (everyone.context_tokens + request.facts.prompt_tokens) / 100_000.0
        request.put(PREDICTED_TTFT_MS, self._predict(self._ttft, ttft))
        request.put(PREDICTED_ITL_MS, self._predict(self._itl, itl))

    def _predict(self, model: RecursiveLeastSquares, features: Floats) -> Floats:
        if model.observations < self.params.trusted_after:
            return np.full(len(features), np.nan)
        return np.maximum(model.predict(features), _LEAST_MS)

    def chosen(self, hold: Hold, now: float) -> None:
        if hold.change.leg:
            return
        worker = hold.worker
        running = float(worker.load()[1])
        own = float(hold.change.uncached_tokens)
        ttft = np.array((1.0, own / 1000.0, (worker.prefill_tokens - own) / 1000.0, running / 10.0))
        itl = np.array((1.0, (running + 1.0) / 10.0, worker.context_tokens / 100_000.0))
        self._chosen[hold.key] = _Chosen(now, ttft, itl)

    def started(self, hold: Hold, now: float, ttft_ms: float) -> None:
        chosen = self._chosen.get(hold.key)
        if chosen is not None:
            self._ttft.learn_sample(chosen.ttft, ttft_ms)
            self._chosen[hold.key] = chosen._replace(ttft_ms=ttft_ms, at=now)

    def completed(self, hold: Hold, now: float, output_tokens: int | None, duration_ms: float | None) -> None:
        chosen = self._chosen.get(hold.key)
        if chosen is not None and chosen.ttft_ms is not None and output_tokens is not None and output_tokens > 1:
            self._itl.learn_sample(chosen.itl, (now - chosen.at) * 1000.0 / (output_tokens - 1))

    def gone(self, hold: Hold, now: float) -> None:
        self._chosen.pop(hold.key, None)
