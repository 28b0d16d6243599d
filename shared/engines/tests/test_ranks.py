"""An engine's data-parallel ranks are workers of their own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_engines.dialect import detect
from pointsman_engines.exposition import Exposition
from pointsman_engines.pace import ReadingPace
from pointsman_engines.ranks import Rank, RankStatus, rank_worker, ranks_of
from pointsman_engines.reading import CacheFacts, Reading, read, read_cache
from pointsman_engines.report import ReportedWorker, load_of, registration_of
from pointsman_engines.speaker import EngineAccess, EngineSpeaker
from pointsman_engines.status import EngineFacts, EngineStatus
from pointsman_testing import eventually
from pointsman_testing.buses import Buses
from pointsman_testing.fake_engine import FakeEngine

RECORDED = Path(__file__).parent / "expositions/vllm-0.32-dp2.txt"
"""Of vLLM 0.32 for CPUs, `--data-parallel-size 2`: two requests went to rank 0 and three to rank 1."""
WORKER = ReportedWorker("llama", "w1", "http://127.0.0.1:1")


class Bucket:
    """A bucket in memory."""

    def __init__(self) -> None:
        self.entries: dict[str, WorkerRegistration] = {}

    async def put(self, key: str, value: bytes) -> int:
        self.entries[key] = WorkerRegistration.decode(value)
        return 1

    async def delete(self, key: str) -> None:
        self.entries.pop(key, None)


def test_the_metrics_of_a_real_engine_tell_each_rank_apart() -> None:
    exposition = Exposition(RECORDED.read_bytes())
    dialect = detect(exposition)
    assert dialect is not None
    reading, cache = read(dialect, exposition), read_cache(dialect, exposition)
    assert cache.rank_labels == ("0", "1")
    assert reading.by_rank is not None
    assert {label: rank.worked for label, rank in reading.by_rank.items()} == {"0": 94, "1": 141}
    one = cache.of_one_rank(2)
    assert (one.ranks, one.kv_blocks) == (1, 65536)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1)), min_size=2, max_size=8))
def test_the_ranks_add_up_to_the_engine(loads: list[tuple[int, int, float]]) -> None:
    lines = [
        line
        for rank, (running, waiting, usage) in enumerate(loads)
        for line in (
            f'vllm:num_requests_running{{engine="{rank}"}} {running}',
            f'vllm:num_requests_waiting{{engine="{rank}"}} {waiting}',
            f'vllm:kv_cache_usage_perc{{engine="{rank}"}} {usage}',
        )
    ]
    exposition = Exposition("\n".join([*lines, ""]).encode())
    dialect = detect(exposition)
    assert dialect is not None
    reading = read(dialect, exposition)
    assert reading.by_rank is not None
    assert list(reading.by_rank) == [str(rank) for rank in range(len(loads))]
    assert [(each.running, each.waiting) for each in reading.by_rank.values()] == [load[:2] for load in loads]
    assert reading.running == sum(each.running for each in reading.by_rank.values())
    assert reading.waiting == sum(each.waiting for each in reading.by_rank.values())


@pytest.mark.parametrize(
    ("labels", "configured", "places"),
    [
        (("0", "1"), None, [(0, "0"), (1, "1")]),
        ((), None, []),
        (("0", "1"), 1, []),
        ((), 2, [(0, "0"), (1, "1")]),
        # The second server of a deployment over two, vLLM's hybrid load balancing: requests count from 0 there.
        (("2", "3"), None, [(0, "2"), (1, "3")]),
        (("0", "1", "2", "3"), 2, [(0, "0"), (1, "1")]),
    ],
)
def test_as_many_ranks_are_workers_as_are_configured_or_else_as_the_metrics_name(
    labels: tuple[str, ...], configured: int | None, places: list[tuple[int, str]]
) -> None:
    facts = EngineFacts("vllm", cache=CacheFacts(16, 2000, max(1, len(labels)), labels))
    assert [(rank.place, rank.label) for rank in ranks_of(facts, configured)] == places


def test_a_rank_is_named_by_its_number_among_all_and_asked_for_by_its_place_at_the_server() -> None:
    facts = EngineFacts("vllm", cache=CacheFacts(16, 2000, 2, ("2", "3")))
    by_rank = {"2": Reading(4, 1, 0.5, worked=9), "3": Reading(1, 0, 0.1)}
    status = EngineStatus(
        reachable=True, reason="", boot_id="b1", facts=facts, reading=Reading(5, 1, 0.3, by_rank=by_rank), read_at_ms=5
    )
    for rank, load in zip(ranks_of(facts, None), by_rank.values(), strict=True):
        worker, narrow = rank_worker(WORKER, rank, 2), RankStatus(rank, 2).narrow
        own = narrow(status)
        assert narrow(status).facts is own.facts, "equal facts are the same object, so that nothing is announced anew"
        registered = registration_of(worker, own, agent="a", version="1", registered_ms=1)
        assert registered is not None
        assert (registered.worker, registered.server) == (f"w1-rank-{rank.label}", "w1")
        assert (registered.rank, registered.ranks, registered.data_parallel_size) == (rank.place, 2, 1)
        assert registered.kv_blocks == 1000
        told = load_of(worker, own, 1, now_ms=6)
        assert told is not None
        assert (told.running, told.waiting, told.kv_usage) == (load.running, load.waiting, load.kv_usage)
        assert told.worked_tokens == load.worked


def test_the_load_of_a_rank_that_the_metrics_leave_out_is_unknown_and_not_zero() -> None:
    narrow = RankStatus(Rank(1, "1"), 2).narrow
    facts = EngineFacts("vllm", cache=CacheFacts(16, 2000))
    for by_rank in (None, {"0": Reading(3, 0), "2": Reading(1, 0)}):
        status = EngineStatus(
            reachable=True, reason="", boot_id="b1", facts=facts, reading=Reading(9, 2, by_rank=by_rank)
        )
        told = load_of(WORKER, narrow(status), 1, now_ms=6)
        assert told is not None
        assert told.load_unknown == "the engine's metrics name no load of rank 1"


class Heard:
    """The messages about the workers of an engine."""

    def __init__(self) -> None:
        self.loads: dict[str, WorkerLoad] = {}
        self.workers: dict[str, WorkerRegistration] = {}

    def load(self, load: WorkerLoad) -> None:
        if load.worker in self.workers:  # as a scheduler takes it
            self.loads[load.worker] = load

    def announced(self, announcement: WorkerAnnouncement) -> None:
        registration = announcement.registration
        if announcement.leaving:
            self.workers.pop(registration.worker, None)
        else:
            self.workers[registration.worker] = registration


@asynccontextmanager
async def spoken_for(
    buses: Buses, engine: FakeEngine, ranks: int | None = None
) -> AsyncGenerator[tuple[EngineSpeaker, Heard]]:
    service, other = buses.make("worker-agent"), buses.make("scheduler")
    heard = Heard()
    other.bus.listen(WorkerLoad, heard.load, ANY, ANY)
    other.bus.listen(WorkerAnnouncement, heard.announced, ANY, ANY)
    await buses.meet()
    await engine.start()
    async with aiohttp.ClientSession() as session:
        access = EngineAccess(engine.url, pace=ReadingPace(0.005, 0.02), answer_timeout_s=0.2, ranks=ranks)
        speaker = EngineSpeaker(service.bus, Bucket(), session, replace(WORKER, url=engine.url), access)
        speaker.start()
        try:
            yield speaker, heard
        finally:
            await speaker.stop(leave=True)
            await engine.stop()


async def test_each_rank_registers_reports_its_own_load_and_leaves_with_its_engine(buses: Buses) -> None:
    engine = FakeEngine(running=3, other_ranks={"1": (5, 2, 0.5)})
    async with spoken_for(buses, engine) as (speaker, heard):
        await eventually(lambda: sorted(heard.workers) == ["w1-rank-0", "w1-rank-1"])
        await eventually(lambda: [load.running for _, load in sorted(heard.loads.items())] == [3, 5])
        assert speaker.problem is None
        engine.other_ranks["1"] = (1, 0, 0.1)
        await eventually(lambda: heard.loads["w1-rank-1"].running == 1)
        assert heard.loads["w1-rank-0"].running == 3
        assert len({registration.boot_id for registration in heard.workers.values()}) == 1
        await engine.stop()
        await eventually(lambda: {load.state for load in heard.loads.values()} == {"unreachable"})
    await eventually(lambda: not heard.workers)


async def test_an_engine_that_names_further_ranks_later_has_them_from_then_on(buses: Buses) -> None:
    engine = FakeEngine()
    async with spoken_for(buses, engine) as (_, heard):
        await eventually(lambda: list(heard.workers) == ["w1"])
        engine.other_ranks["1"] = (0, 0, 0.0)
        await eventually(lambda: sorted(heard.workers) == ["w1-rank-0", "w1-rank-1"])
        engine.other_ranks["2"] = (0, 0, 0.0)
        await eventually(lambda: sorted(heard.workers) == ["w1-rank-0", "w1-rank-1", "w1-rank-2"])


async def test_a_rank_that_the_metrics_leave_out_for_a_while_stays_with_unknown_load(buses: Buses) -> None:
    engine = FakeEngine(running=3, other_ranks={"1": (5, 2, 0.5)})
    async with spoken_for(buses, engine) as (_, heard):
        await eventually(lambda: [load.running for _, load in sorted(heard.loads.items())] == [3, 5])
        del engine.other_ranks["1"]
        await eventually(lambda: heard.loads["w1-rank-1"].load_unknown != "")
        assert (heard.loads["w1-rank-0"].running, heard.loads["w1-rank-0"].load_unknown) == (3, "")
        engine.other_ranks["1"] = (1, 0, 0.5)
        await eventually(lambda: heard.loads["w1-rank-1"].running == 1)
        assert sorted(heard.workers) == ["w1-rank-0", "w1-rank-1"]


async def test_an_engine_whose_ranks_are_not_told_apart_has_as_many_workers_as_are_configured(buses: Buses) -> None:
    async with spoken_for(buses, FakeEngine(running=4), ranks=2) as (_, heard):
        await eventually(lambda: sorted(heard.workers) == ["w1-rank-0", "w1-rank-1"])
        await eventually(lambda: all(load.load_unknown for load in heard.loads.values()) and len(heard.loads) == 2)


async def test_one_rank_that_is_configured_keeps_the_engine_as_one_worker(buses: Buses) -> None:
    async with spoken_for(buses, FakeEngine(other_ranks={"1": (0, 0, 0.0)}), ranks=1) as (speaker, heard):
        await eventually(lambda: list(heard.workers) == ["w1"])
        assert heard.workers["w1"].data_parallel_size == 2
        assert heard.workers["w1"].rank is None
        assert [finding.kind for voice in speaker.voices for finding in voice.registrar.findings] == []
