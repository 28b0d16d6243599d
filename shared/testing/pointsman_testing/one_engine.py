"""One engine behind a scheduler without a bus, with pass times that the scheduler has learnt."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from pointsman_delay.pass_model import PassModel
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_testing.scheduler_bench import Bench

PREFILL_MS: Final = 15.0
TOKEN_MS: Final = 0.02
"""The time of a pass: this for each token of it, besides `PREFILL_MS`."""


def teach_passes(
    model: PassModel, pass_ms: float = PREFILL_MS, token_ms: float = TOKEN_MS, rest: tuple[float, float] = (0.0, 0.0)
) -> None:
    """Passes of prompts take so long, and so much more for each token. `rest`: the prompts and sequences of a pass."""
    dice = np.random.default_rng(1)
    for _ in range(200):
        tokens = float(dice.integers(100, 8000)) * 1e-3
        features = np.array([1.0, tokens, tokens**2, 0.0, *rest, 0.0])
        model.learn_pass(features, pass_ms + 1e3 * token_ms * tokens, 1.0)
    if not model.is_trusted:
        raise AssertionError("these passes teach the model too little")


class OneEngine:
    """It computes what it was sent, all in one pass."""

    def __init__(self, late_binding: Mapping[str, object], slower: float = 1.0, ttl: str = "20s") -> None:
        """`slower`: by this factor the scheduler believes passes to be longer than they are; `ttl`: of flow control."""
        self.bench: Final = Bench(
            {"late_binding": {"max_requests": 1000, **late_binding}, "flow_control": {"ttl": ttl}}
        )
        self.bench.join("a", kv_blocks=100_000)
        self.bench.serve()
        (producer,) = [each for each in self.bench.policy.producers if isinstance(each, DelayPrediction)]
        teach_passes(producer.estimator.best.model, slower * PREFILL_MS, slower * TOKEN_MS)
        self.bench.now += 10.0
        self.sent: list[ScheduleRequest] = []
        self._computed: list[ScheduleRequest] = []
        self._ends = math.inf

    def take_bound(self, bound: Bound) -> None:
        """A request has waited. Sends it to the engine; subclasses note more, or refuse it."""
        self.bench.pool.decide(bound.request, self.bench.now, 1, self.bench.policy)
        self.sent.append(bound.request)

    def note_answer(self, request: ScheduleRequest, at: float) -> None:
        """The first token of a request came, which is its last."""

    def work(self) -> None:
        """Bind the requests that may go, and begin a pass with all that were sent."""
        bench = self.bench
        for bound in bench.pool.bind(bench.now):
            self.take_bound(bound)
        if self.sent and not self._computed:
            self._computed, self.sent = self.sent, []
            tokens = sum(request.facts.prompt_tokens for request in self._computed)
            self._ends = bench.now + (PREFILL_MS + TOKEN_MS * tokens) / 1000.0

    def run(self, until: float) -> None:
        """Let time pass; `until` is infinite for the end of all work."""
        bench = self.bench
        while True:
            at = min(self._ends, bench.pool.look_at(bench.now) or math.inf)
            if at > until or at == math.inf:
                break
            bench.now = at
            if at == self._ends:
                for request in self._computed:
                    self.note_answer(request, at)
                    bench.pool.books.started(request.key, "a", 5.0, at)
                    bench.pool.books.completed(request.key, at, ok=True, output_tokens=1)
                self._computed, self._ends = [], math.inf
            self.work()
        if until < math.inf:
            bench.now = until
