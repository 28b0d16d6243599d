"""Closed loops: a request arrives when those that it waits for have ended, and its gap has passed."""

from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import POLICIES, SESSION_POLICIES, Compared, Setting, compare, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.report import heading, row
from pointsman_simulator.summary import summarize
from pointsman_simulator.trace import TraceRequest, read_mooncake, reusable
from pointsman_simulator.workloads import CLOSED_LOOPS, generate_workload

LINES = (
    {"timestamp": 0, "input_length": 700, "output_length": 400, "hash_ids": [1, 2], "answer_ids": [3], "session": 7},
    {
        "timestamp": 9000,
        "input_length": 1200,
        "output_length": 10,
        "hash_ids": [1, 2, 3],
        "answer_ids": [],
        "session": 7,
        "parent": 0,
        "gap_ms": 1500,
    },
    {"timestamp": 100, "input_length": 64, "output_length": 1, "hash_ids": [9], "after": [0, 1], "parent": 1},
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "agents.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in LINES))
    return path


@st.composite
def loops(draw: st.DrawFn) -> list[TraceRequest]:
    count = draw(st.integers(1, 12))
    return [
        TraceRequest(
            arrival_ms=draw(st.floats(0.0, 2000.0)),
            prompt_tokens=draw(st.integers(1, 3000)),
            output_tokens=draw(st.integers(1, 60)),
            blocks=[],
            after=tuple(draw(st.lists(st.integers(0, place - 1), unique=True, max_size=3)) if place else ()),
            gap_ms=draw(st.floats(0.0, 500.0)),
        )
        for place in range(count)
    ]


@settings(max_examples=60, deadline=None)
@given(loops(), st.sampled_from([*POLICIES, *SESSION_POLICIES]))
def test_each_request_arrives_its_gap_after_the_last_end_that_it_waits_for(
    requests: Sequence[TraceRequest], name: str
) -> None:
    fleet = SimulatedFleet([EngineConfig()] * 2, Lags())
    outcomes = fleet.replay_trace(requests, make_policy(name, Setting(2), 0))
    for request, arrived, done in zip(requests, outcomes.arrived, outcomes.requests, strict=True):
        ends = [outcomes.requests[place].finished_at for place in request.after]
        expected = max(ends) + request.gap_ms if ends else request.arrival_ms
        assert arrived == pytest.approx(expected)
        assert done.finished_at > arrived


def test_a_trace_names_what_a_request_waits_for_and_what_its_answer_adds(trace: Path) -> None:
    first, second, third = read_mooncake(trace, closed_loop=True)
    assert (first.after, second.after, set(third.after)) == ((), (0,), {0, 1})
    assert second.gap_ms == 1500.0
    assert second.blocks[: 1100 // 64] == first.blocks[: 1100 // 64]
    assert (first.session, third.session) == ("7", None)


def test_an_open_loop_keeps_the_times_of_the_trace(trace: Path) -> None:
    assert [(request.arrival_ms, request.after) for request in read_mooncake(trace)] == [
        (0.0, ()),
        (100.0, ()),
        (9000.0, ()),
    ]


@pytest.mark.parametrize("after", [[3], [5], [-1]])
def test_a_request_that_waits_for_a_later_line_is_refused(trace: Path, after: list[int]) -> None:
    line = {**LINES[2], "after": after}
    trace.write_bytes(b"\n".join(orjson.dumps(each) for each in (*LINES, line)))
    with pytest.raises(ValueError, match=r"agents.jsonl:4: .*isn't an earlier line"):
        read_mooncake(trace, closed_loop=True)


def test_a_trace_without_parents_has_no_closed_loop(trace: Path) -> None:
    trace.write_bytes(orjson.dumps(LINES[0]))
    with pytest.raises(ValueError, match="no closed loop"):
        read_mooncake(trace, closed_loop=True)


def test_an_endless_cache_computes_new_blocks_and_the_last_token(trace: Path) -> None:
    requests = read_mooncake(trace, closed_loop=True)
    # Of 1,200 tokens the first 1,100 were prompt and answer before: 17 whole blocks.
    assert reusable(requests, 64) == pytest.approx(17 * 64 / (700 + 1200 + 64))
    assert reusable([requests[0], requests[0]], 64) == pytest.approx(10 * 64 / 1400)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(CLOSED_LOOPS)), st.integers(2, 300), st.integers(0, 5))
def test_steps_of_coding_agents_wait_for_earlier_ones_and_go_on_with_their_prompts(
    name: str, count: int, seed: int
) -> None:
    requests = generate_workload(name, count, 4.0, seed)
    assert len(requests) == count
    assert generate_workload(name, count, 4.0, seed) == requests
    for place, request in enumerate(requests):
        assert all(before < place for before in request.after)
        assert all(requests[before].session == request.session for before in request.after)
        assert 0.0 <= request.arrival_ms < count / 4.0 * 1000
        assert request.prompt_tokens + request.output_tokens <= EngineConfig().num_blocks * 64


def test_most_of_the_prompts_of_coding_agents_can_be_reused() -> None:
    assert 0.9 < reusable(generate_workload("coding-agents", 1500, 4.0), 64) < 0.99


def test_a_session_stays_at_its_engine_by_the_rules_for_sessions() -> None:
    requests = generate_workload("coding-agents", 200, 4.0)
    for name in ("session-hash", "llm-d-session"):
        outcomes = SimulatedFleet([EngineConfig()] * 4, Lags()).replay_trace(requests, make_policy(name, Setting(4), 0))
        engines: dict[str | None, set[int]] = {}
        for request, worker, arrived in zip(requests, outcomes.workers, outcomes.arrived, strict=True):
            if arrived < 300_000:
                engines.setdefault(request.session, set()).add(worker)
        assert all(len(each) == 1 for each in engines.values()), name
        assert {worker for each in engines.values() for worker in each} == {0, 1, 2, 3}


def test_requests_that_wait_for_room_compute_far_less_again_where_caches_are_short() -> None:
    requests = generate_workload("coding-agents", 100, 4.0, seed=3)
    engine = EngineConfig(num_blocks=6000)
    at_once = SchedulingPolicy.model_validate({"cache_room": {"enabled": False}})
    setting = Setting(2, engine=engine, scheduling={"at-once": at_once})
    computed: dict[str, int] = {}
    for name in ("pointsman", "at-once"):
        outcomes = SimulatedFleet(setting.list_engines, Lags()).replay_trace(requests, make_policy(name, setting, 0))
        assert all(each.finished_at > 0.0 for each in outcomes.requests)
        computed[name] = sum(each.prompt_tokens - each.cached_tokens for each in outcomes.requests)
    assert computed["pointsman"] < 0.7 * computed["at-once"]


def test_the_table_of_sessions_fits_80_columns_and_has_their_time() -> None:
    requests = generate_workload("coding-agents", 60, 4.0)
    (compared,) = compare(requests, ("pointsman",), Setting(2), seeds=1, processes=1, done=lambda _: None)
    assert compared.has_sessions
    for line in (*heading(sessions=True).splitlines(), row(compared)):
        assert len(line) <= 80
    figures = row(compared).split()
    assert len(figures) == len(heading(sessions=True).splitlines()[1].split())
    assert 0.0 < compared.mean_of("reuse_possible") <= 1.0 + 1e-9
    assert compared.mean_of("session_p95") > 0.0


def test_sessions_dont_change_the_figures_of_a_trace_without_them() -> None:
    requests = generate_workload("chat", 50, 4.0)
    outcomes = SimulatedFleet([EngineConfig()] * 2, Lags()).replay_trace(
        requests, make_policy("pointsman", Setting(2), 0)
    )
    summary = summarize(outcomes, 2, trace=requests)
    assert (summary.session_p95, summary.reuse_possible) == (0.0, 0.0)
    assert not Compared("pointsman", (summary,)).has_sessions
