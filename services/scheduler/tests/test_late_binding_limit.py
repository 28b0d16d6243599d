"""The limit of a wait: a request that reached it lets only those go before that reached theirs earlier."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_delay.pass_model import PassModel
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.late_binding import Because
from pointsman_scheduler.domain.outcome import Postponed, Scheduled
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_testing.scheduler_bench import Bench

PREFILL_MS, TOKEN_MS = 15.0, 0.02
SLOWDOWN = 1.5


class Wait(NamedTuple):
    """One request that waited. Milliseconds."""

    limit: float
    bound: float
    because: Because


class Engine:
    """One engine that computes what it was sent, all in one pass, behind a scheduler with a learnt pass model."""

    def __init__(self) -> None:
        self.bench = Bench({"late_binding": {"slowdown": SLOWDOWN, "max_requests": 1000}})
        self.bench.join("a", kv_blocks=100_000)
        self.bench.serve()
        (producer,) = [each for each in self.bench.policy.producers if isinstance(each, DelayPrediction)]
        model: PassModel = producer.estimator.best.model
        dice = np.random.default_rng(1)
        for _ in range(200):
            tokens = float(dice.integers(100, 8000)) * 1e-3
            features = np.array([1.0, tokens, tokens**2, 0.0, 0.0, 0.0, 0.0])
            model.learn_pass(features, PREFILL_MS + TOKEN_MS * 1e3 * tokens, 1.0)
        self.bench.now += 10.0
        self.sent: list[ScheduleRequest] = []
        self.computed: list[ScheduleRequest] = []
        self.ends = math.inf
        self.limits: dict[RequestKey, float] = {}
        self.waits: list[Wait] = []

    def offer(self, tokens: int) -> None:
        """A request comes."""
        request = self.bench.request(prompt_tokens=tokens)
        outcome = self.bench.pool.decide(request, self.bench.now, 1, self.bench.policy)
        if isinstance(outcome, Postponed):
            (unbound,) = [each for each in self.bench.pool.binder.waiting if each.request is request]
            self.limits[request.key] = unbound.latest
        else:
            self.sent.append(request)
        self.work()

    def work(self) -> None:
        """Bind what may go, and begin a pass with all that was sent."""
        bench = self.bench
        for bound in bench.pool.bind(bench.now):
            assert isinstance(bench.pool.decide(bound.request, bench.now, 1, bench.policy), Scheduled)
            self.sent.append(bound.request)
            self.waits.append(Wait(self.limits[bound.request.key], bench.now * 1000.0, bound.because))
        if self.sent and not self.computed:
            self.computed, self.sent = self.sent, []
            tokens = sum(request.facts.prompt_tokens for request in self.computed)
            self.ends = bench.now + (PREFILL_MS + TOKEN_MS * tokens) / 1000.0

    def run(self, until: float) -> None:
        """Let time pass; `until` is infinite for the end of all work."""
        bench = self.bench
        while True:
            at = min(self.ends, bench.pool.look_at(bench.now) or math.inf)
            if at > until or at == math.inf:
                break
            bench.now = at
            if at == self.ends:
                for request in self.computed:
                    bench.pool.books.started(request.key, "a", 5.0, at)
                    bench.pool.books.completed(request.key, at, ok=True, output_tokens=1)
                self.computed, self.ends = [], math.inf
            self.work()
        if until < math.inf:
            bench.now = until


@pytest.mark.requirement("LATE-1")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4000), st.floats(0.0, 80.0)), min_size=5, max_size=60))
def test_after_its_limit_a_request_waits_only_for_requests_whose_limit_came_earlier(
    arrivals: list[tuple[int, float]],
) -> None:
    engine = Engine()
    for tokens, gap_ms in arrivals:
        engine.run(engine.bench.now + gap_ms / 1000.0)
        engine.offer(tokens)
    engine.run(math.inf)
    assert not engine.bench.pool.binder.waiting
    assert len(engine.waits) == len(engine.limits)
    for late in engine.waits:
        between = [other for other in engine.waits if late.limit < other.bound < late.bound]
        assert all(other.limit <= late.limit for other in between)
