"""A flight log is read as a recording: who asked for what, when, where it went, and how it ended."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.config import SchedulingPolicy
from pointsman_flight import records
from pointsman_flight.frames import FORMAT
from pointsman_flight.header import Header
from pointsman_flight.reader import LogError
from pointsman_flight.writer import SegmentWriter
from pointsman_simulator.twin.flight_log import read_recording
from pointsman_simulator.twin.recording import LoadReport

BEGAN_S = 1_700_000_000


def write(
    folder: Path,
    entries: Sequence[records.Record],
    *,
    pool: str = "llama",
    scheduler: str = "scheduler-1",
    later_s: float = 0.0,
    empty: bool = True,
) -> None:
    """One segment; the monotonic clock of its scheduler shows 100 s when it begins."""
    header = Header(
        format=FORMAT, product="1", pool=pool, scheduler=scheduler, index=1, empty=empty, follows=False, first_input=1,
        unix_ns=int((BEGAN_S + later_s) * 1e9), monotonic=100.0, salt="abcd", hashed_ids=False, index_bytes=2**20,
    )  # fmt: skip
    writer = SegmentWriter(folder, header)
    writer.write(entries)
    writer.end_file("closed")


def registered(at: float, name: str, boot: str = "1", blocks: int | None = 1000) -> records.WorkerRegistered:
    registration = WorkerRegistration(
        worker=name, pool="llama", url=f"http://{name}", models=("llama-8b",), block_tokens=16, kv_blocks=blocks,
        boot_id=boot, agent="a", version="1", registered_ms=0,
    )  # fmt: skip
    return records.WorkerRegistered(at, registration.encode())


def facts(tokens: int = 200, *, stream: bool = True) -> records.LoggedRequest:
    known = RequestFacts(api="", prompt_tokens=tokens, max_output_tokens=64, stream=stream)
    blocks = np.array([7, 8, 9], "<u8").tobytes()
    return records.LoggedRequest("llama-8b", None, attempt=1, affinity=0, blocks=blocks, facts=known)


def decided(
    at: float,
    request: str,
    outcome: records.RecordedOutcome,
    about: records.LoggedRequest | None,
    queued_s: float = 0.0,
    policy: int = 1,
) -> records.Decided:
    bound = None if about is not None else ""
    return records.Decided(at, 1, policy, "edge-1", request, about, bound, queued_s, outcome)


def sent_to(engine: str) -> records.RecordedOutcome:
    return records.RecordedOutcome("scheduled", (engine,))


def started(at: float, request: str, engine: str) -> records.AnswerStarted:
    return records.AnswerStarted(at, "edge-1", request, engine, 1.0)


def ended(at: float, request: str, engine: str, *, ok: bool = True) -> records.RequestCompleted:
    return records.RequestCompleted(at, "edge-1", request, ok, 50, 1.0, engine, 0)


LOAD = WorkerLoad(
    worker="engine-1", pool="llama", boot_id="1", sequence=1, at_ms=0, running=3, waiting=2, kv_usage=0.5, max_loras=4
)
MOVED = AttemptFailed(
    request_id="moved", source="edge-1", sequence=1, at_ms=0, pool="llama", worker="engine-1", outcome="refused",
    next_worker="engine-2",
)  # fmt: skip
POLICY = records.PolicyDefined(1, "default", "h1", SchedulingPolicy().model_dump_json(by_alias=True))


def test_a_request_has_its_arrival_its_engine_and_its_times(tmp_path: Path) -> None:
    entries = [
        POLICY,
        registered(100.0, "engine-1"),
        records.LoadReported(101.0, LOAD, counted=True),
        decided(102.0, "a", sent_to("engine-1"), facts(), queued_s=0.5),
        started(102.3, "a", "engine-1"),
        decided(102.4, "b", records.RecordedOutcome("postponed", ("engine-1",)), facts()),
        decided(102.9, "b", sent_to("engine-1"), None),
        ended(104.0, "a", "engine-1"),
        started(104.5, "b", "engine-1"),
        ended(105.0, "b", "engine-1"),
    ]
    write(tmp_path, entries)
    found = read_recording([tmp_path])
    assert found.pool == "llama"
    assert found.policy == SchedulingPolicy()
    assert (found.changes, found.lost, found.warm, found.block_tokens) == ((), 0, False, 64)
    [engine] = found.engines
    assert (engine.kv_tokens, engine.models, engine.max_loras) == (16_000, ("llama-8b",), 4)
    [report] = engine.reports
    assert report == LoadReport(report.at_ms, 3, 2, 0.5)
    assert report.at_ms == pytest.approx(1000.0)
    first, second = found.requests
    assert (first.arrived_ms, first.sent_ms) == (pytest.approx(1500.0), pytest.approx(2000.0))
    assert (first.first_ms, first.ended_ms) == (pytest.approx(2300.0), pytest.approx(4000.0))
    assert (first.engine, first.prompt_tokens, first.output_tokens, first.seed) == ("engine-1", 200, 50, 1)
    assert (first.blocks, first.max_tokens, first.streamed, first.is_judged) == ([7, 8, 9], 64, True, True)
    assert (second.arrived_ms, second.sent_ms) == (pytest.approx(2400.0), pytest.approx(2900.0))


def test_requests_that_say_nothing_about_an_engine_are_kept_and_not_judged(tmp_path: Path) -> None:
    lost = records.AttemptLost(103.0, MOVED)
    entries = [
        POLICY,
        registered(100.0, "engine-1"),
        registered(100.0, "engine-2"),
        decided(102.0, "moved", sent_to("engine-1"), facts()),
        lost,
        started(103.5, "moved", "engine-2"),
        ended(104.0, "moved", "engine-2"),
        decided(102.0, "gone", sent_to("engine-1"), facts()),
        ended(102.5, "gone", "engine-1", ok=False),
        decided(102.0, "open", sent_to("engine-1"), facts()),
        decided(102.0, "whole", sent_to("engine-1"), facts(stream=False)),
        ended(104.0, "whole", "engine-1"),
        decided(102.0, "refused", records.RecordedOutcome("refused", code="saturated"), facts()),
    ]
    write(tmp_path, entries)
    found = read_recording([tmp_path])
    assert [request.is_judged for request in found.requests] == [False, False, False, True]
    assert found.requests[3].first_ms is None
    assert found.elsewhere == 1


def test_changes_of_the_fleet_and_of_the_policy_are_named(tmp_path: Path) -> None:
    other = SchedulingPolicy.model_validate({"scorers": [{"use": "queue", "weight": 1}]})
    entries = [
        POLICY,
        registered(100.0, "engine-1"),
        registered(102.0, "engine-1"),
        decided(103.0, "a", sent_to("engine-1"), facts()),
        registered(120.0, "engine-2"),
        registered(130.0, "engine-1", boot="2"),
        records.PolicyDefined(2, "queues", "h2", other.model_dump_json(by_alias=True)),
        decided(131.0, "b", sent_to("engine-1"), facts(), policy=2),
        decided(132.0, "c", sent_to("engine-1"), facts(), policy=2),
        records.WorkerRemoved(140.0, "engine-2"),
    ]
    write(tmp_path, entries, empty=False)
    found = read_recording([tmp_path])
    assert [(round(change.at_ms / 1000), change.what) for change in found.changes] == [
        (20, "engine-2 joined"),
        (30, "engine-1 restarted"),
        (31, "the policy changed to 'queues'"),
        (40, "engine-2 left"),
    ]
    assert (found.policy_name, found.policy, found.warm) == ("queues", other, True)


def test_the_flights_of_several_schedulers_are_one_recording_on_the_wall_clock(tmp_path: Path) -> None:
    write(tmp_path, [POLICY, registered(100.0, "engine-1"), decided(103.0, "a", sent_to("engine-1"), facts())])
    entries = [POLICY, registered(100.0, "engine-1"), decided(101.0, "b", sent_to("engine-1"), facts())]
    write(tmp_path, entries, scheduler="scheduler-2", later_s=1.0)
    found = read_recording([tmp_path])
    assert [request.arrived_ms for request in found.requests] == [pytest.approx(2000.0), pytest.approx(3000.0)]
    assert len(found.engines) == 1


def test_the_pool_is_named_where_there_are_several(tmp_path: Path) -> None:
    for pool in ("llama", "qwen"):
        write(tmp_path / pool, [registered(100.0, "engine-1")], pool=pool)
    with pytest.raises(ValueError, match="--pool: llama, qwen"):
        read_recording([tmp_path])
    with pytest.raises(ValueError, match="no pool 'mixtral'; it has: llama, qwen"):
        read_recording([tmp_path], "mixtral")
    assert read_recording([tmp_path], "qwen").pool == "qwen"
    with pytest.raises(LogError):
        read_recording([tmp_path / "nothing"])
