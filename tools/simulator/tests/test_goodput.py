"""Service levels at more than an engine's capacity, in virtual time: a level is worth no less than none."""

import numpy as np
import pytest

from pointsman_contracts.service_level import SERVE, ServicePromise
from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import Setting
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.gated import GatedPolicy
from pointsman_simulator.policy import REFUSED
from pointsman_simulator.trace import TraceRequest

LEVELS = {"interactive": 2000.0, "bulk": 30_000.0}
SETTING = Setting(1)


def overload(seed: int, gap_ms: float) -> list[TraceRequest]:
    """Requests whose prompts take an engine 400 ms on average; half of them are interactive."""
    dice = np.random.default_rng(seed)
    promises = [ServicePromise(service_class=name, ttft_ms=ttft_ms) for name, ttft_ms in LEVELS.items()]
    return [
        TraceRequest(
            number * gap_ms, int(dice.integers(1000, 30_000)), 40, [], promise=promises[int(dice.integers(0, 2))]
        )
        for number in range(250)
    ]


def count_in_time(trace: list[TraceRequest], late: str | None) -> tuple[int, int]:
    """Requests whose first token came in time: interactive ones, and all."""
    policy = GatedPolicy(SETTING.workers, SchedulingPolicy(), SETTING.engine, 1, late=late)
    outcomes = SimulatedFleet(SETTING.list_engines, SETTING.lags).replay_trace(trace, policy)
    kept = [
        request.promise.service_class
        for request, sequence, worker, arrived in zip(
            trace, outcomes.requests, outcomes.workers, outcomes.arrived, strict=True
        )
        if request.promise is not None and worker != REFUSED
        if sequence.first_token_at - arrived <= (request.promise.ttft_ms or 0.0)
    ]
    return kept.count("interactive"), len(kept)


@pytest.mark.requirement("SLO-4")
def test_with_a_level_more_requests_are_in_time_than_without_also_where_late_ones_are_served() -> None:
    trace = overload(6, 210.0)
    none, served = (count_in_time(trace, late) for late in (None, SERVE))
    assert served[0] > none[0]
    assert served[1] > none[1]
