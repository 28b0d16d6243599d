"""Sudden changes of engines in virtual time: what they do, and what late binding loses by them."""

import pytest

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, compare
from pointsman_simulator.disturbance import Disturbance, DisturbanceKind
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, Outcomes, SimulatedFleet
from pointsman_simulator.policy import Arrival, Observation
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.workloads import generate_workload

AT_MS = 20_000.0


class First:
    """Sends every request to the first engine, and notes the load it was shown."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def observe(self, observation: Observation, now: float) -> None:
        pass

    def choose(self, arrival: Arrival) -> int:
        self.running.append(arrival.load.running[0] + arrival.load.waiting[0])
        return 0


def alone(arrivals_ms: list[float], *disturbances: Disturbance, lags: Lags | None = None) -> tuple[Outcomes, First]:
    """Requests with one prompt of 2,048 tokens, on one engine."""
    trace = [TraceRequest(at, 2048, 40, list(range(32))) for at in arrivals_ms]
    policy = First()
    return SimulatedFleet([EngineConfig()], lags, disturbances).replay_trace(trace, policy), policy


def ttfts(outcomes: Outcomes) -> list[float]:
    return [each.first_token_at - at for each, at in zip(outcomes.requests, outcomes.arrived, strict=True)]


def test_passes_take_as_many_times_as_long_from_then_on() -> None:
    usual, _ = alone([0.0, 10_000.0])
    slowed, _ = alone([0.0, 10_000.0], Disturbance(5_000.0, 0, "slower", 2.0))
    assert ttfts(slowed) == pytest.approx([ttfts(usual)[0], 2.0 * ttfts(usual)[1]])


def test_a_wiped_cache_computes_the_prompt_again() -> None:
    outcomes, _ = alone([0.0, 10_000.0], Disturbance(5_000.0, 0, "wiped"))
    assert [request.cached_tokens for request in outcomes.requests] == [0, 0]


def test_an_engine_that_lies_reports_that_nothing_runs() -> None:
    _, honest = alone([0.0, 300.0])
    _, lying = alone([0.0, 300.0], Disturbance(0.0, 0, "lies"))
    assert (honest.running[1], lying.running[1]) == (1, 0)


def test_smaller_passes_take_more_of_them() -> None:
    outcomes, _ = alone([0.0, 10_000.0], Disturbance(1.0, 0, "smaller-passes", 8.0), Disturbance(5_000.0, 0, "wiped"))
    assert ttfts(outcomes)[1] > ttfts(outcomes)[0]


def test_a_request_reaches_its_engine_after_the_way_there() -> None:
    near, _ = alone([0.0])
    far, _ = alone([0.0], lags=Lags(dispatch=7.0))
    assert ttfts(far)[0] == pytest.approx(ttfts(near)[0] + 7.0)


@pytest.mark.requirement("LATE-2")
@pytest.mark.parametrize(("kind", "factor"), [("slower", 2.0), ("lies", 1.0), ("wiped", 1.0), ("smaller-passes", 4.0)])
def test_late_binding_loses_little_against_binding_at_once_when_an_engine_changes(
    kind: DisturbanceKind, factor: float
) -> None:
    at_once = SchedulingPolicy.model_validate({"late_binding": {"enabled": False}})
    setting = Setting(4, disturbances=(Disturbance(AT_MS, 0, kind, factor),), scheduling={"at once": at_once})
    late, early = compare(
        generate_workload("bursts", 300, 6.0), (DEFAULT_POLICY, "at once"), setting, 1, 1, lambda _: None
    )
    for figure in ("ttft_mean", "e2e_mean"):
        assert late.mean_of(figure) <= 1.05 * early.mean_of(figure), figure
