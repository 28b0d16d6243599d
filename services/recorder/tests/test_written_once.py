"""Each request has one record in the ledger, whatever befalls the ledger: full, away, deleted, or written by others."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from pointsman_contracts.identity import Identity
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSums
from pointsman_runtime.bus.errors import NoListener, NoReply
from pointsman_testing import NatsServer, Processes, ServiceProcess, eventually
from pointsman_testing.builders import unix_ms
from pointsman_testing.nats_server import new_nats_server
from pointsman_testing.observer import Observer, observing

pytestmark = [pytest.mark.requirement("USAGE-2"), pytest.mark.timeout(240)]
# The recorder steps back where others have work.
patiently = partial(eventually, timeout=60.0)
LEDGER = "PM_USAGE"
RECORDS = "pm.rec.>"
NO_MEMORY_S = 0.1
"""Seconds for which the server recognizes a repetition; the least that it allows."""


def completed(number: int) -> ResponseCompleted:
    return ResponseCompleted(
        request_id=f"r-{number}", source="edge-1", sequence=number, at_ms=unix_ms(), pool="p", status=200, outcome="ok",
        usage=Usage(prompt_tokens=number), identity=Identity(tenant="acme" if number % 2 else "other"), served="llama",
    )  # fmt: skip


class Scene:
    """Recorders on one server, and requests that end."""

    def __init__(self, server: NatsServer, seen: Observer, processes: Processes, folder: Path) -> None:
        self.server = server
        self.seen = seen
        self._processes = processes
        self._folder = folder
        self.ended = 0

    @property
    def js(self) -> JetStreamContext:
        return self.seen.js

    def start(self, name: str = "recorder") -> ServiceProcess:
        """A recorder with a database of its own."""
        env = {
            "POINTSMAN_NATS_URL": self.server.url,
            "POINTSMAN_STATE_DIR": str(self._folder / name),
            "POINTSMAN_RECORDER_NAME": name,
        }
        return self._processes.fork("pointsman-recorder", env=env)

    def end(self, requests: int) -> None:
        for _ in range(requests):
            self.ended += 1
            self.seen.bus.publish(completed(self.ended), "p")

    async def make_ledger(self, **changes: object) -> None:
        await self.js.add_stream(StreamConfig(name=LEDGER, subjects=[RECORDS]).evolve(**changes))  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    async def change_ledger(self, **changes: object) -> None:
        config = (await self.js.stream_info(LEDGER)).config
        await self.js.update_stream(config.evolve(**changes))  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    async def sums(self) -> tuple[int, int]:
        """Requests and tokens of one recorder that answers."""
        try:
            answer = UsageSums.decode(await self.seen.bus.ask(UsageQuery(by=()), timeout=10))
        except (NoReply, NoListener):
            return 0, 0
        return (answer.rows[0].requests, answer.rows[0].prompt_tokens) if answer.rows else (0, 0)

    async def all_summed(self) -> bool:
        return (await self.sums())[0] >= self.ended

    async def records(self) -> list[int]:
        """The numbers of the requests with a record, one for each record."""
        state = (await self.js.stream_info(LEDGER)).state
        if not state.messages:
            return []
        found = [await self.js.get_msg(LEDGER, seq=seq) for seq in range(state.first_seq, state.last_seq + 1)]
        return [int(UsageRecord.decode(message.data or b"").request_id[2:]) for message in found]

    async def each_has_one(self) -> bool:
        return sorted(await self.records()) == list(range(1, self.ended + 1))


@asynccontextmanager
async def _alone(processes: Processes, folder: Path) -> AsyncGenerator[Scene]:
    """A scene on a server of its own."""
    server = new_nats_server()
    await asyncio.to_thread(server.start)
    try:
        async with observing(server.url) as seen:
            yield Scene(server, seen, processes, folder)
    finally:
        await asyncio.to_thread(server.close)


@pytest.fixture
async def scene(processes: Processes, tmp_path: Path) -> AsyncIterator[Scene]:
    async with _alone(processes, tmp_path) as scene:
        yield scene


async def test_a_record_that_is_read_back_isnt_confirmed(scene: Scene) -> None:
    asked_for: list[bool] = []
    scene.seen.bus.link.subscribe(RECORDS, lambda _subject, reply, _headers, _payload: asked_for.append(bool(reply)))
    await scene.start().wait_ready()
    for _ in range(3):
        scene.end(100)
        await patiently(scene.all_summed)
    assert await scene.each_has_one()
    assert asked_for == [False] * 300


async def full(scene: Scene) -> Callable[[], Awaitable[None]]:
    await scene.change_ledger(max_msgs=55, discard=DiscardPolicy.NEW)
    return partial(scene.change_ledger, max_msgs=-1)


async def of_another_subject(scene: Scene) -> Callable[[], Awaitable[None]]:
    await scene.change_ledger(subjects=["elsewhere"])
    return partial(scene.change_ledger, subjects=[RECORDS])


async def refuses_long_records(scene: Scene) -> Callable[[], Awaitable[None]]:
    await scene.change_ledger(max_msg_size=10)
    return partial(scene.change_ledger, max_msg_size=-1)


async def refuses_one_tenant(scene: Scene) -> Callable[[], Awaitable[None]]:
    limits = {"discard": DiscardPolicy.NEW, "discard_new_per_subject": True}
    await scene.change_ledger(max_msgs_per_subject=30, **limits)
    return partial(scene.change_ledger, max_msgs_per_subject=-1, discard_new_per_subject=False)


async def test_records_that_the_ledger_didnt_take_are_written_later(tmp_path: Path, processes: Processes) -> None:
    async def troubled_by(trouble: Callable[[Scene], Awaitable[Callable[[], Awaitable[None]]]], folder: Path) -> None:
        async with _alone(processes, folder) as scene:
            recorder = scene.start()
            await recorder.wait_ready()
            scene.end(50)
            await patiently(scene.all_summed)
            relieve = await trouble(scene)
            scene.end(50)
            await patiently(lambda: any(line.get("reason") == "NotWritten" for line in recorder.log_lines()))
            scene.end(50)
            await relieve()
            await patiently(scene.all_summed)
            assert await scene.each_has_one(), trouble
            assert await scene.sums() == (150, sum(range(151))), trouble

    # A recorder waits for seconds before it writes again: four of them wait together.
    troubles = (full, of_another_subject, refuses_long_records, refuses_one_tenant)
    await asyncio.gather(*(troubled_by(trouble, tmp_path / trouble.__name__) for trouble in troubles))


async def test_a_server_that_stands_still_loses_and_repeats_no_record(scene: Scene) -> None:
    await scene.make_ledger(duplicate_window=NO_MEMORY_S)
    await scene.start().wait_ready()
    for _ in range(2):
        scene.end(300)
        await scene.seen.bus.link.flush(10)
        await asyncio.to_thread(scene.server.pause)
        await patiently(lambda: not scene.seen.bus.connected)
        await asyncio.to_thread(scene.server.resume)
        await patiently(lambda: scene.seen.bus.connected)
    await patiently(scene.all_summed)
    assert await scene.each_has_one()
    assert await scene.sums() == (600, sum(range(601)))


async def test_a_recorder_that_stands_still_repeats_no_record(scene: Scene) -> None:
    await scene.make_ledger(duplicate_window=NO_MEMORY_S)
    recorder = scene.start()
    await recorder.wait_ready()
    loop = asyncio.get_running_loop()
    for _ in range(2):
        before = (await scene.js.stream_info(LEDGER)).state.messages
        scene.end(300)
        while (await scene.js.stream_info(LEDGER)).state.messages == before:
            pass
        recorder.pause()
        resumes = loop.time() + 6.0
        await patiently(lambda resumes=resumes: loop.time() > resumes)
        recorder.resume()
        await patiently(scene.all_summed)
    assert await scene.each_has_one()


async def test_a_killed_server_loses_and_repeats_no_record(scene: Scene) -> None:
    await scene.make_ledger(duplicate_window=NO_MEMORY_S)
    await scene.start().wait_ready()
    for _ in range(3):
        scene.end(300)
        await scene.seen.bus.link.flush(10)
        await asyncio.to_thread(scene.server.kill)
        await asyncio.to_thread(scene.server.start)
        await patiently(lambda: scene.seen.bus.connected)

    async def as_many_as_events() -> bool:
        """A killed server may have lost events that no recorder has seen."""
        events = (await scene.js.stream_info("PM_EVENTS")).state.messages
        return events > 0 and len(await scene.records()) == events == (await scene.sums())[0]

    await patiently(as_many_as_events)
    found = await scene.records()
    assert len(set(found)) == len(found)
    assert await scene.sums() == (len(found), sum(found))


async def test_a_ledger_that_is_deleted_gets_the_records_that_werent_read_in_it(scene: Scene) -> None:
    await scene.start().wait_ready()
    scene.end(20)
    await patiently(scene.all_summed)
    await scene.js.delete_stream(LEDGER)
    scene.end(20)
    await patiently(scene.all_summed)
    assert sorted(await scene.records()) == list(range(21, 41))
    assert await scene.sums() == (40, sum(range(41)))


async def test_two_recorders_write_one_record_for_each_request(scene: Scene) -> None:
    recorders = [scene.start("first"), scene.start("second")]
    for recorder in recorders:
        await recorder.wait_ready()
    for _ in range(5):
        scene.end(100)
        await patiently(scene.all_summed)
    for recorder in recorders:
        recorder.kill()
    assert await scene.each_has_one()
    for name in ("first", "second"):
        again = scene.start(name)
        await again.wait_ready()
        await patiently(scene.all_summed)
        assert await scene.sums() == (500, sum(range(501)))
        again.kill()
    assert await scene.each_has_one()


async def test_a_recorder_that_comes_late_writes_no_record_again(scene: Scene) -> None:
    await scene.make_ledger(duplicate_window=NO_MEMORY_S)
    first = scene.start("first")
    await first.wait_ready()
    scene.end(50)
    await patiently(scene.all_summed)
    first.kill()
    await scene.start("second").wait_ready()
    scene.end(10)
    await patiently(scene.all_summed)
    assert await scene.each_has_one()


async def test_a_killed_recorder_writes_no_record_again(scene: Scene) -> None:
    await scene.make_ledger(duplicate_window=NO_MEMORY_S)
    for _ in range(4):
        recorder = scene.start()
        await recorder.wait_ready()
        before = len(await scene.records())
        scene.end(200)

        async def some_written(before: int = before) -> bool:
            return (await scene.js.stream_info(LEDGER)).state.messages > before

        await patiently(some_written)
        recorder.kill()
    await scene.start().wait_ready()
    await patiently(scene.all_summed)
    assert await scene.each_has_one()
    assert await scene.sums() == (800, sum(range(801)))
