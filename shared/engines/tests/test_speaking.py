"""Load and registration as the bus and the bucket see them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import pytest
from nats.errors import NoServersError

from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_engines.drain import Drain
from pointsman_engines.load_reporter import LoadReporter
from pointsman_engines.pace import ReadingPace
from pointsman_engines.reading import Reading
from pointsman_engines.registrar import Registrar
from pointsman_engines.report import ReportedWorker
from pointsman_engines.speaker import EngineAccess, EngineSpeaker
from pointsman_engines.status import EngineFacts, EngineStatus
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusDisconnected
from pointsman_testing import eventually
from pointsman_testing.buses import Buses
from pointsman_testing.fake_engine import FakeEngine

WORKER = ReportedWorker("llama", "w1", "http://127.0.0.1:1")
STATUS = EngineStatus(
    reachable=True, reason="", boot_id="b1", reading=Reading(1, 0), read_at_ms=5, facts=EngineFacts("vllm")
)


class Bucket:
    """A bucket in memory that can be out of order."""

    def __init__(self) -> None:
        self.entries: dict[str, WorkerRegistration] = {}
        self.puts = 0
        self.broken = False
        self.refused = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def put(self, key: str, value: bytes) -> int:
        await self.answers.wait()
        if self.broken:
            self.refused += 1
            raise NoServersError
        self.puts += 1
        self.entries[key] = WorkerRegistration.decode(value)
        return self.puts

    async def delete(self, key: str) -> None:
        if self.broken:
            raise NoServersError
        del self.entries[key]


@dataclass
class Listener:
    loads: list[WorkerLoad]

    @property
    def last(self) -> WorkerLoad:
        return self.loads[-1]


async def speaking_and_listening(buses: Buses) -> tuple[Bus, Listener]:
    service, other = buses.make("worker-agent"), buses.make("scheduler")
    loads: list[WorkerLoad] = []
    other.bus.listen(WorkerLoad, loads.append, ANY, ANY)
    await buses.meet()
    return service.bus, Listener(loads)


async def test_load_is_published_when_it_changes_and_again_while_it_does_not(buses: Buses) -> None:
    service, heard = await speaking_and_listening(buses)
    reporter = LoadReporter(service, WORKER)
    reporter.saw(EngineStatus())
    reporter.saw(STATUS)
    await eventually(lambda: heard.loads)
    reporter.saw(replace(STATUS, reading=Reading(2, 5)))
    await eventually(lambda: heard.last.running == 2)
    await eventually(lambda: len(heard.loads) >= 4)
    reporter.stop()
    assert [load.running for load in heard.loads[:4]] == [1, 2, 2, 2]
    assert [load.sequence for load in heard.loads] == list(range(1, len(heard.loads) + 1))


async def test_a_new_state_and_a_new_life_do_not_wait_for_the_gap(buses: Buses) -> None:
    service, heard = await speaking_and_listening(buses)
    reporter = LoadReporter(service, WORKER)
    reporter.saw(STATUS)
    reporter.saw(replace(STATUS, reachable=False))
    reporter.saw(replace(STATUS, boot_id="b2"))
    reporter.set_drain(Drain())
    assert reporter.sent == 4, "each was sent in the turn in which it was seen"
    reporter.saw(replace(STATUS, boot_id="b2", reading=Reading(9, 9)))
    assert reporter.sent == 4, "a mere change of numbers waits"
    await eventually(lambda: heard.loads and heard.last.running == 9)
    reporter.stop()
    assert [(load.state, load.boot_id) for load in heard.loads] == [
        ("serving", "b1"),
        ("unreachable", "b1"),
        ("serving", "b2"),
        ("draining", "b2"),
        ("draining", "b2"),
    ]


async def test_reports_that_the_bus_did_not_take_are_counted_and_come_again(buses: Buses) -> None:
    service, heard = await speaking_and_listening(buses)
    reporter = LoadReporter(service, WORKER)
    await service.hub.connection.close()
    reporter.saw(STATUS)
    assert (reporter.sent, reporter.unsent) == (0, 1)
    service.hub.connection.open()
    await eventually(lambda: heard.loads)
    reporter.stop()


class Registering:
    """A registrar with a bucket and a bus in memory."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.announced: list[WorkerAnnouncement] = []
        self.registered = 0
        self.disconnected = False
        self.registrar = Registrar(
            self._announce, self.bucket, WORKER, agent="agent-1", version="0.1.0", on_registered=self._count
        )

    def _announce(self, announcement: WorkerAnnouncement) -> None:
        if self.disconnected:
            raise BusDisconnected("the server went away")
        self.announced.append(announcement)

    def _count(self) -> None:
        self.registered += 1


@asynccontextmanager
async def registering() -> AsyncGenerator[Registering]:
    made = Registering()
    task = asyncio.create_task(made.registrar.run())
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_a_worker_is_registered_once_its_engine_is_known_and_again_when_it_changes() -> None:
    async with registering() as made:
        registrar, entries = made.registrar, made.bucket.entries
        registrar.saw(EngineStatus())
        assert registrar.problem == "the engine hasn't answered yet, so its kind and models are unknown"
        registrar.saw(STATUS)
        await eventually(lambda: registrar.problem is None)
        await eventually(lambda: entries["llama.w1"].boot_id == "b1")
        registrar.saw(replace(STATUS, boot_id="b2", facts=None))
        registrar.saw(replace(STATUS, boot_id="b2", facts=EngineFacts("vllm")))
        await eventually(lambda: entries["llama.w1"].boot_id == "b2")
        await eventually(lambda: made.registered == 2)
        registrar.renew()
        await eventually(lambda: made.bucket.puts == 3)
        await eventually(lambda: len(made.announced) == 3)
        assert made.registered == 2, "a heartbeat is no news"
        assert [told.registration.boot_id for told in made.announced] == ["b1", "b2", "b2"]
        await registrar.remove_registration()
        assert entries == {}
        assert made.announced[-1].leaving


async def test_a_worker_is_registered_while_the_bucket_takes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with registering() as made:
        registrar = made.registrar
        made.bucket.broken = True
        registrar.saw(STATUS)
        await eventually(lambda: made.announced)
        assert registrar.problem is None
        await eventually(lambda: registrar.entry.problem)
        registrar.renew()
        await eventually(lambda: made.bucket.refused > 1)
        assert [record.message for record in caplog.records].count("registration_not_stored") == 1
        made.bucket.broken = False
        await eventually(lambda: registrar.entry.problem is None)
        made.bucket.broken = True
        await registrar.remove_registration()
        assert made.bucket.entries, "an entry that can't be removed expires with the bucket's TTL"
        assert made.announced[-1].leaving, "who listens knows all the same"


async def test_a_bucket_that_does_not_answer_keeps_no_worker_from_being_announced() -> None:
    async with registering() as made:
        made.bucket.answers.clear()
        made.registrar.saw(STATUS)
        await eventually(lambda: made.announced)
        made.registrar.renew()
        await eventually(lambda: len(made.announced) > 1)
        assert made.bucket.puts == 0


async def test_a_worker_that_cannot_be_announced_says_so_until_it_is() -> None:
    async with registering() as made:
        made.disconnected = True
        made.registrar.saw(STATUS)
        await eventually(lambda: "not connected" in str(made.registrar.problem))
        made.disconnected = False
        await eventually(lambda: made.registrar.problem is None)
        made.disconnected = True
        await made.registrar.remove_registration()
        assert made.bucket.entries == {}


async def test_a_worker_that_never_registered_leaves_nothing_to_remove() -> None:
    async with registering() as made:
        await made.registrar.remove_registration()
        assert made.bucket.puts == 0
        assert made.announced == []


async def test_a_speaker_names_what_keeps_requests_from_its_engine(buses: Buses) -> None:
    service, heard = await speaking_and_listening(buses)
    bucket, engine = Bucket(), FakeEngine(models_status=500)
    await engine.start()
    async with aiohttp.ClientSession() as session:
        worker = replace(WORKER, url=engine.url)
        access = EngineAccess(engine.url, pace=ReadingPace(0.005, 0.02), answer_timeout_s=0.2)
        speaker = EngineSpeaker(service, bucket, session, worker, access)
        assert speaker.problem == f"engine {engine.url} unreachable: not asked yet"
        speaker.start()
        await eventually(lambda: speaker.problem == "/v1/models answers 500")
        engine.models_status = 200
        await eventually(lambda: speaker.problem is None)
        await eventually(lambda: heard.loads and heard.last.state == "serving")
        await engine.stop()
        await eventually(lambda: heard.last.state == "unreachable")
        assert speaker.problem == f"engine {engine.url} unreachable: connection refused"
        speaker.raise_task_error()
        await speaker.stop(leave=False)
        assert list(bucket.entries) == ["llama.w1"]
        await speaker.stop(leave=True)
        assert bucket.entries == {}
