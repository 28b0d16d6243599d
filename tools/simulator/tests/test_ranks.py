"""Data-parallel ranks in virtual time: each is an endpoint, and those of one engine share its load."""

import numpy as np
import pytest

from pointsman_simulator.comparison import make_policy
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.replay import ReplayOptions, prepare
from pointsman_simulator.scheduler_policy import SchedulerPolicy

ENGINES, RANKS = 1, 4
WITHIN = 0.10
SETTLED = 0.2
"""Part of the requests after which the load is steady."""


def shares(workload: str, rate: float, policy: str = "pointsman") -> tuple[np.ndarray, np.ndarray]:
    """Requests and computed tokens of each rank, [engines, ranks], in the steady part of a workload."""
    options = ReplayOptions(
        workload=workload, requests=2400, rate=rate, workers=ENGINES, ranks=RANKS, policies=(policy,)
    )
    replay = prepare(options)
    setting = replay.setting
    outcomes = SimulatedFleet(setting.list_engines, setting.lags).replay_trace(
        replay.trace, make_policy(policy, setting, 1)
    )
    begin = round(SETTLED * len(replay.trace))
    rows = np.array(outcomes.workers[begin:])
    work = [each.prompt_tokens - each.cached_tokens + each.generated for each in outcomes.requests[begin:]]
    requests = np.bincount(rows, minlength=ENGINES * RANKS).reshape(ENGINES, RANKS)
    tokens = np.bincount(rows, weights=work, minlength=ENGINES * RANKS).reshape(ENGINES, RANKS)
    return requests, tokens


def imbalance(figures: np.ndarray) -> float:
    """The most by which a rank is above or below the mean of its engine's ranks, as a part of that mean."""
    means = figures.mean(axis=1, keepdims=True)
    return float(np.abs(figures / means - 1).max())


def test_the_ranks_of_one_engine_compute_the_same_within_a_tenth_under_steady_load() -> None:
    """Of prompts that few others share: those of a shared document go to the ranks that hold it."""
    requests, tokens = shares("chat", 20.0)
    assert requests.min() > 0
    assert imbalance(tokens) <= WITHIN


def test_each_rank_is_registered_as_an_endpoint_of_its_engine() -> None:
    replay = prepare(ReplayOptions(workload="chat", requests=10, workers=2, ranks=2, policies=("pointsman",)))
    policy = make_policy("pointsman", replay.setting, 1)
    assert isinstance(policy, SchedulerPolicy)
    (scheduler,) = policy.schedulers
    found = {each.name: (each.registration.server, each.registration.rank, each.url) for each in scheduler.pool.fleet}
    assert found == {
        f"worker-{engine}-rank-{rank}": (f"worker-{engine}", rank, f"http://worker-{engine}")
        for engine in (0, 1)
        for rank in (0, 1)
    }


def test_an_engine_without_a_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="one rank at least"):
        prepare(ReplayOptions(workload="chat", ranks=0))
