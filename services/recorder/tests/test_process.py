"""The recorder as a process on a real server: killed, forgetful, late."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from pointsman_contracts.identity import Identity
from pointsman_contracts.money import NANOS
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.story import Story, StoryQuery
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSum, UsageSums
from pointsman_runtime.bus.errors import NobodyListens, NoReply
from pointsman_runtime.service.host import EXIT_FAILED
from pointsman_testing import NatsServer, Processes, ServiceProcess, eventually
from pointsman_testing.builders import unix_ms
from pointsman_testing.observer import Observer, observing

# The recorder steps back where others have work.
patiently = partial(eventually, timeout=60.0)
EVENTS = "PM_EVENTS"
LEDGER = "PM_USAGE"


def completed(number: int) -> ResponseCompleted:
    return ResponseCompleted(
        request_id=f"r-{number}",
        source="edge-1",
        sequence=number,
        at_ms=unix_ms(),
        pool="p",
        status=200,
        outcome="ok",
        usage=Usage(prompt_tokens=number, completion_tokens=1),
        identity=Identity(tenant="acme" if number % 2 else "other"),
        served="llama",
        cost_nanos=500_000_000,
    )


class Scene:
    """A recorder, and whoever looks at what it does."""

    def __init__(self, server: NatsServer, seen: Observer, processes: Processes, folder: Path) -> None:
        self.server = server
        self.seen = seen
        self.folder = folder
        self._processes = processes

    def start(self) -> ServiceProcess:
        env = {"POINTSMAN_NATS_URL": self.server.url, "POINTSMAN_STATE_DIR": str(self.folder / "state")}
        return self._processes.start("pointsman-recorder", env=env)

    async def ask_story(self, request_id: str) -> Story:
        return Story.decode(await self.seen.bus.ask(StoryQuery(request_id=request_id), timeout=30))

    async def sums(self, *by: str) -> tuple[UsageSum, ...]:
        return UsageSums.decode(await self.seen.bus.ask(UsageQuery(by=by), timeout=30)).rows

    async def summed(self, requests: int) -> bool:
        try:
            rows = UsageSums.decode(await self.seen.bus.ask(UsageQuery(by=()), timeout=10)).rows
        except (NoReply, NobodyListens):
            return False
        return bool(rows) and rows[0].requests >= requests

    async def records(self) -> list[UsageRecord]:
        """Everything in the ledger."""
        state = (await self.seen.js.stream_info(LEDGER)).state
        found = [await self.seen.js.get_msg(LEDGER, seq=seq) for seq in range(state.first_seq, state.last_seq + 1)]
        return [UsageRecord.decode(message.data or b"") for message in found]


@pytest.fixture
async def scene(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> AsyncIterator[Scene]:
    async with observing(own_nats_server.url) as seen:
        yield Scene(own_nats_server, seen, processes, tmp_path)


@pytest.mark.requirement("USAGE-2")
async def test_a_killed_recorder_finds_every_event_and_charges_every_request_once(scene: Scene) -> None:
    recorder = scene.start()
    await recorder.wait_ready()
    bus = scene.seen.bus
    # The first half while it reads, the second while it is dead; what it had in hand comes again.
    for number in range(1, 501):
        bus.publish(completed(number), "p")
    await patiently(partial(scene.summed, 1))
    recorder.kill()
    for number in range(501, 1001):
        bus.publish(completed(number), "p")
    scheduled = RequestScheduled.model_validate(
        {
            "request_id": "r-1000", "source": "s", "sequence": 1, "at_ms": unix_ms(), "edge": "e", "pool": "p",
            "model": "llama", "target": {"model": "llama", "pool": "p"}, "profile": "standard", "primary": "default",
            "runs": [], "endpoints": ["w"], "reason": "the only candidate", "revision": 1,
        }
    )  # fmt: skip
    bus.publish(scheduled, "p")

    recorder = scene.start()
    await recorder.wait_ready()
    await patiently(partial(scene.summed, 1000))
    [row] = await scene.sums()
    assert (row.requests, row.prompt_tokens, row.cost_nanos) == (1000, 500_500, 500 * NANOS)
    assert {(each.tenant, each.requests) for each in await scene.sums("tenant")} == {("acme", 500), ("other", 500)}
    records = await scene.records()
    assert sorted(int(record.request_id[2:]) for record in records) == list(range(1, 1001))

    async def kept() -> Story | None:
        story = await scene.ask_story("r-1000")
        return story if len(story.events) == 2 else None

    story = await patiently(kept)
    assert [event.type for event in story.events] == ["response.completed.v1", "request.scheduled.v1"]
    assert RequestScheduled.decode(story.events[1].body) == scheduled


async def test_a_recorder_that_lost_its_folder_has_the_same_story_and_sums_again(scene: Scene) -> None:
    recorder = scene.start()
    await recorder.wait_ready()
    for number in range(1, 51):
        scene.seen.bus.publish(completed(number), "p")
    await patiently(partial(scene.summed, 50))
    before = await scene.sums("tenant", "model", "day")
    recorder.kill()
    await asyncio.to_thread((scene.folder / "state").rename, scene.folder / "lost")

    recorder = scene.start()
    await recorder.wait_ready()
    await patiently(partial(scene.summed, 50))
    assert await scene.sums("tenant", "model", "day") == before

    async def kept() -> bool:
        return len((await scene.ask_story("r-50")).events) == 1

    await patiently(kept)
    assert (await scene.seen.js.stream_info(LEDGER)).state.last_seq == 50

    # A further one may not share the folder.
    second = scene.start()
    await patiently(lambda: second.returncode is not None)
    assert second.returncode == EXIT_FAILED
    assert "another recorder's" in second.log_text()
    assert recorder.returncode is None


async def test_an_outage_of_the_bus_and_events_that_cant_be_read_dont_end_it(scene: Scene) -> None:
    recorder = scene.start()
    await recorder.wait_ready()
    subject, body = "pm.evt.response.completed.v1.p", b"canary nonsense"
    published = await scene.seen.js.publish(subject, body, headers={"Pm-Type": "response.completed.v1"})
    scene.seen.bus.publish(completed(1), "p")
    await patiently(partial(scene.summed, 1))

    def told() -> list[tuple[object, ...]]:
        lines = [line for line in recorder.log_lines() if line["event"] == "malformed_message"]
        return [(line["subject"], line["size"], line["sequence"]) for line in lines]

    await patiently(told)
    assert told() == [(subject, len(body), published.seq)]
    for _ in range(2):
        await scene.seen.js.publish("pm.rec.usage.record.v1.acme", body)

    async def both_counted() -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"{recorder.http_url}/metrics") as answer:
            return "pointsman_recorder_usage_unreadable_total 2.0" in await answer.text()

    await patiently(both_counted)
    assert len([line for line in recorder.log_lines() if line["event"] == "malformed_record"]) == 1
    assert "canary" not in recorder.log_text()
    await asyncio.to_thread(scene.server.kill)
    await asyncio.to_thread(scene.server.start)
    await patiently(lambda: scene.seen.bus.connected)

    async def counts_again() -> bool:
        scene.seen.bus.publish(completed(2), "p")
        return await scene.summed(2)

    await patiently(counts_again)
    [row] = await scene.sums()
    assert row.requests == 2

    # A stream that somebody deleted is made again by who reads it.
    await scene.seen.js.delete_stream(EVENTS)

    async def counts_on() -> bool:
        scene.seen.bus.publish(completed(3), "p")
        return await scene.summed(3)

    await patiently(counts_on)
    assert recorder.returncode is None

    # A ledger whose records are all gone is read at once.
    recorder.kill()
    await scene.seen.js.purge_stream(LEDGER)
    await asyncio.to_thread((scene.folder / "state").rename, scene.folder / "lost")
    await scene.start().wait_ready()
