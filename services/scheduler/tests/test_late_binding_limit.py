"""The limit of a wait: a request that reached it lets only those go before that reached theirs earlier."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_plugins.scheduling.request import RequestKey
from pointsman_scheduler.domain.late_binding import Because, Bound
from pointsman_scheduler.domain.outcome import Postponed
from pointsman_testing.one_engine import OneEngine

SLOWDOWN = 1.5


class Wait(NamedTuple):
    """One request that waited. Milliseconds."""

    limit: float
    bound: float
    because: Because


class Engine(OneEngine):
    """One engine that keeps the waits of its requests."""

    def __init__(self) -> None:
        super().__init__({"slowdown": SLOWDOWN})
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

    def take_bound(self, bound: Bound) -> None:
        super().take_bound(bound)
        self.waits.append(Wait(self.limits[bound.request.key], self.bench.now * 1000.0, bound.because))


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
