"""Virtual-time replay agrees with the published results of `dynamo.replay` and leaks nothing to policies."""

from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from pointsman_simulator.baselines import DynamoCostBaseline, GieDefault, LeastRequests, RoundRobinBaseline
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.policy import (
    Arrival,
    Completed,
    KvChanged,
    Load,
    Observation,
    Reported,
    RoutingPolicy,
    Started,
)
from pointsman_simulator.prefix_index import BaselinePrefixIndex
from pointsman_simulator.summary import Summary, summarize
from pointsman_simulator.trace import BlockNames, TraceRequest, read_mooncake, scale_arrivals

CONVERSATION = Path(__file__).parents[1] / "traces" / "mooncake_conversation.jsonl.xz"
IMMEDIATE = Lags(response=0.0, kv=0.0, load=0.0)


@pytest.fixture(scope="module")
def conversation() -> list[TraceRequest]:
    return read_mooncake(CONVERSATION, limit=2000)


def replay(trace: list[TraceRequest], workers: int, policy: RoutingPolicy) -> Summary:
    return summarize(SimulatedFleet([EngineConfig()] * workers, IMMEDIATE).replay_trace(trace, policy), workers)


def test_round_robin_gives_the_reference_results_to_a_tenth_of_a_percent(
    conversation: list[TraceRequest],
) -> None:
    result = replay(conversation, 4, RoundRobinBaseline(4))
    assert result.reuse == pytest.approx(0.0859, abs=0.00005)
    assert result.ttft_mean == pytest.approx(535.5, rel=0.001)
    assert result.itl_mean == pytest.approx(10.877, rel=0.001)
    assert result.e2e_mean == pytest.approx(4356.5, rel=0.001)
    few = replay(conversation[:500], 2, RoundRobinBaseline(2))
    assert few.ttft_mean == pytest.approx(1161.0, rel=0.001)
    assert few.reuse == pytest.approx(0.0539, abs=0.00005)
    assert few.itl_mean == pytest.approx(30.625, rel=0.001)


@pytest.mark.parametrize(
    ("scale", "credit", "reuse", "ttft", "itl", "e2e"),
    [
        (1.0, 1.0, (0.133, 0.145), (479, 491), (10.14, 10.23), (4046, 4085)),
        (2.0, 1.0, (0.148, 0.157), (457, 466), (10.06, 10.15), (3993, 4023)),
        (1.0, 0.0, (0.066, 0.088), (507, 518), (10.36, 10.52), (4146, 4214)),
    ],
)
def test_the_dynamo_rule_lands_in_the_range_of_dynamo_itself(
    conversation: list[TraceRequest],
    scale: float,
    credit: float,
    reuse: tuple[float, float],
    ttft: tuple[float, float],
    itl: tuple[float, float],
    e2e: tuple[float, float],
) -> None:
    """Ties are random; the ranges are those of repeated reference runs, the claim is about the mean of five."""
    results = [
        replay(conversation, 4, DynamoCostBaseline(4, 64, seed, prefill_load_scale=scale, overlap_score_credit=credit))
        for seed in range(5)
    ]

    def mean(name: str) -> float:
        return sum(getattr(result, name) for result in results) / len(results)

    assert reuse[0] <= mean("reuse") <= reuse[1]
    assert ttft[0] <= mean("ttft_mean") <= ttft[1]
    assert itl[0] <= mean("itl_mean") <= itl[1]
    assert e2e[0] <= mean("e2e_mean") <= e2e[1]


class Recorder:
    """Round-robin that keeps what it was told and when."""

    def __init__(self, workers: int) -> None:
        self.inner = RoundRobinBaseline(workers)
        self.seen: list[tuple[float, Observation]] = []
        self.decisions: list[float] = []

    def observe(self, observation: Observation, now: float) -> None:
        self.seen.append((observation.at, observation))

    def choose(self, arrival: Arrival) -> int:
        assert not hasattr(arrival, "output_tokens")
        lag: dict[type[Observation], float] = {Started: 7.0, Completed: 7.0, KvChanged: 11.0}
        assert all(at + lag[type(observation)] <= arrival.at for at, observation in self.seen)
        self.decisions.append(arrival.at)
        return self.inner.choose(arrival)


def test_a_policy_learns_of_everything_once_and_not_before_its_lag(conversation: list[TraceRequest]) -> None:
    trace = conversation[:300]
    recorder = Recorder(3)
    outcomes = SimulatedFleet([EngineConfig()] * 3, Lags(response=7.0, kv=11.0, load=50.0)).replay_trace(
        trace, recorder
    )
    counts = Counter(type(observation) for _, observation in recorder.seen)
    assert counts[Started] == counts[Completed] == len(trace)
    started = {o.request: o.at for _, o in recorder.seen if isinstance(o, Started)}
    assert started == {index: request.first_token_at for index, request in enumerate(outcomes.requests)}
    assert [request.arrived_at for request in outcomes.requests] == recorder.decisions


def test_load_reports_are_as_old_as_asked_for() -> None:
    class Watcher(RoundRobinBaseline):
        loads: list[Load]

        def choose(self, arrival: Arrival) -> int:
            self.loads.append(arrival.load)
            return super().choose(arrival)

    watcher = Watcher(1)
    watcher.loads = []
    trace = [TraceRequest(at, 640, 100, list(range(10))) for at in (0.0, 40.0, 60.0)]
    SimulatedFleet([EngineConfig()], Lags(load=50.0)).replay_trace(trace, watcher)
    assert [(load.running, load.waiting) for load in watcher.loads] == [([0], [0]), ([0], [0]), ([0], [1])]


def test_the_index_of_kv_events_is_what_the_engines_hold(conversation: list[TraceRequest]) -> None:
    class Indexed(RoundRobinBaseline):
        def __init__(self) -> None:
            super().__init__(2)
            self.index = BaselinePrefixIndex(2)
            self.matched: list[int] = []
            self.evicted = 0

        def observe(self, observation: Observation, now: float) -> None:
            if isinstance(observation, KvChanged):
                self.evicted += len(observation.removed)
                self.index.remove_blocks(observation.worker, observation.removed)
                self.index.store_blocks(observation.worker, observation.stored)

        def choose(self, arrival: Arrival) -> int:
            worker = super().choose(arrival)
            self.matched.append(self.index.match_blocks(arrival.blocks)[worker])
            return worker

    engine, policy = EngineConfig(num_blocks=2000), Indexed()
    alone = [replace(request, arrival_ms=number * 600_000.0) for number, request in enumerate(conversation[:200])]
    outcomes = SimulatedFleet([engine] * 2, IMMEDIATE).replay_trace(alone, policy)
    # An engine computes the last token of a prompt whatever it holds.
    most = [(request.prompt_tokens - 1) // engine.block_size for request in alone]
    assert [each.cached_tokens for each in outcomes.requests] == [
        min(matched, limit) * engine.block_size for matched, limit in zip(policy.matched, most, strict=True)
    ]
    assert any(policy.matched)
    assert policy.evicted > 0


@pytest.mark.parametrize("policy", [LeastRequests(3), LeastRequests(3, choices=2), GieDefault(3)])
def test_every_baseline_serves_every_request(conversation: list[TraceRequest], policy: RoutingPolicy) -> None:
    trace = scale_arrivals(conversation[:300], 2.0)
    assert trace[-1].arrival_ms == conversation[299].arrival_ms / 2
    outcomes = SimulatedFleet([EngineConfig()] * 3).replay_trace(trace, policy)
    assert all(request.finished_at >= request.first_token_at for request in outcomes.requests)
    assert set(outcomes.workers) == {0, 1, 2}


def test_least_requests_goes_where_fewest_are_open() -> None:
    policy, load = LeastRequests(3), Load([0] * 3, [0] * 3, [0.0] * 3, [()] * 3)
    chosen = [policy.choose(Arrival(i, 0.0, 10, [], load)) for i in range(3)]
    assert sorted(chosen) == [0, 1, 2]
    policy.observe(Completed(1, chosen[1], 5.0, 1, 0), 6.0)
    assert policy.choose(Arrival(3, 6.0, 10, [], load)) == chosen[1]


def test_block_names_are_equal_exactly_for_equal_prefixes() -> None:
    names = BlockNames(segment_tokens=128, block_size=64)
    first, same, other = names.names_of([1, 2], 200), names.names_of([1, 2], 256), names.names_of([3, 2], 256)
    assert len(first) == 3
    assert same[:3] == first
    assert not set(same) & set(other)
    with pytest.raises(ValueError, match="isn't a multiple"):
        BlockNames(512, 100)


def test_a_broken_trace_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [0]}\n'
    path.write_text(good + '{"timestamp": 1}\n')
    with pytest.raises(ValueError, match=r"t\.jsonl:2"):
        read_mooncake(path)


def test_reports_with_moments_of_their_own_are_observed_once_when_they_come_in() -> None:
    class Watcher(RoundRobinBaseline):
        def __init__(self) -> None:
            super().__init__(1)
            self.heard: list[tuple[float, int]] = []
            self.loads: list[tuple[int, bool]] = []

        def observe(self, observation: Observation, now: float) -> None:
            if isinstance(observation, Reported):
                self.heard.append((now, observation.report.running + observation.report.waiting))

        def choose(self, arrival: Arrival) -> int:
            self.loads.append((arrival.load.running[0] + arrival.load.waiting[0], arrival.load.observed))
            return super().choose(arrival)

    watcher = Watcher()
    trace = [TraceRequest(at, 640, 100, list(range(10))) for at in (0.0, 40.0, 130.0)]
    SimulatedFleet([EngineConfig()], Lags(load=5.0), reports=[count(-10.0, 60.0)]).replay_trace(trace, watcher)
    assert watcher.heard == [(-10.0, 0), (50.0, 2), (110.0, 2)]
    assert watcher.loads == [(0, True), (0, True), (2, True)]
