"""Fleets whose engines come and go: lost requests are sent again, and an engine that isn't there gets none."""

import pytest

from pointsman_simulator.baselines import RoundRobinBaseline
from pointsman_simulator.comparison import Setting, make_policy
from pointsman_simulator.disturbance import Disturbance
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.judged import JudgedPolicy
from pointsman_simulator.workloads import generate_workload

NAMES = ("pointsman", "gie", "dynamo", "session-hash", "llm-d-precise", "llm-d-session")
AT_MS = 8_000.0


@pytest.mark.parametrize(("name", "schedulers"), [*((name, 1) for name in NAMES), ("pointsman", 3)])
def test_a_lost_engines_requests_are_answered_by_the_others(name: str, schedulers: int) -> None:
    trace = generate_workload("chat", 120, 8.0, 3)
    setting = Setting(3, disturbances=(Disturbance(AT_MS, 0, "lost"),), schedulers=schedulers)
    fleet = SimulatedFleet(setting.list_engines, setting.lags, setting.disturbances)
    outcomes = fleet.replay_trace(trace, make_policy(name, setting, 1))
    assert all(each.finished_at > at for each, at in zip(outcomes.requests, outcomes.arrived, strict=True))
    there = [each for each, worker in zip(outcomes.requests, outcomes.workers, strict=True) if worker == 0]
    assert there
    assert max(each.finished_at for each in there) <= AT_MS
    pairs = zip(outcomes.requests, outcomes.arrived, strict=True)
    assert any(each.arrived_at == AT_MS > at for each, at in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_gets_requests_from_the_moment_at_which_it_joins(name: str) -> None:
    trace = generate_workload("chat", 120, 8.0, 3)
    setting = Setting(3, disturbances=(Disturbance(AT_MS, 2, "joins"),))
    fleet = SimulatedFleet(setting.list_engines, setting.lags, setting.disturbances)
    policy = JudgedPolicy(make_policy(name, setting, 1), 3, setting.engine.block_size)
    outcomes = fleet.replay_trace(trace, policy)
    begun = [at for at, worker in zip(outcomes.arrived, outcomes.workers, strict=True) if worker == 2]
    assert begun
    assert min(begun) >= AT_MS


def test_a_policy_of_a_fixed_fleet_is_not_asked_to_follow_changes() -> None:
    fleet = SimulatedFleet(Setting(2).list_engines, None, (Disturbance(AT_MS, 0, "joins"),))
    with pytest.raises(TypeError, match="RoundRobinBaseline"):
        fleet.replay_trace(generate_workload("chat", 5, 8.0), RoundRobinBaseline(2))
