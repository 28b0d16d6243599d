"""The recorder as a process on a real server: killed, forgetful, late."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from pointsman_contracts.identity import Identity
from pointsman_contracts.message import Message, read_fields
from pointsman_contracts.money import NANOS
from pointsman_contracts.regret import RegretQuery, RegretSums, RequestsJudged
from pointsman_contracts.response import ResponseCompleted, ResponseStarted, Usage
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun, RequestScheduled
from pointsman_contracts.story import Story, StoryQuery
from pointsman_contracts.subjects import subject
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSum, UsageSums
from pointsman_hosting.host import EXIT_FAILED
from pointsman_runtime.bus.errors import NoListener, NoReply
from pointsman_testing import NatsServer, Processes, ServiceProcess, builders, eventually
from pointsman_testing.builders import unix_ms
from pointsman_testing.observer import Observer, observing

# The recorder steps back where others have work.
patiently = partial(eventually, timeout=60.0)
M = TypeVar("M", bound=Message)
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
    """A recorder, and an observer of what it publishes."""

    def __init__(self, server: NatsServer, seen: Observer, processes: Processes, folder: Path) -> None:
        self.server = server
        self.seen = seen
        self.folder = folder
        self._processes = processes

    def start(self, *, by_itself: bool = False, **settings: str) -> ServiceProcess:
        env = {"POINTSMAN_NATS_URL": self.server.url, "POINTSMAN_STATE_DIR": str(self.folder / "state"), **settings}
        start = self._processes.start if by_itself else self._processes.fork
        return start("pointsman-recorder", env=env)

    async def ask_story(self, request_id: str) -> Story:
        return Story.decode(await self.seen.bus.ask(StoryQuery(request_id=request_id), timeout=30))

    async def sums(self, *by: str) -> tuple[UsageSum, ...]:
        return UsageSums.decode(await self.seen.bus.ask(UsageQuery(by=by), timeout=30)).rows

    async def summed(self, requests: int) -> bool:
        try:
            rows = UsageSums.decode(await self.seen.bus.ask(UsageQuery(by=()), timeout=10)).rows
        except (NoReply, NoListener):
            return False
        return bool(rows) and rows[0].requests >= requests

    async def events(self, kind: type[M]) -> list[M]:
        """Every event of a type in the stream."""
        state = (await self.seen.js.stream_info(EVENTS)).state
        first = max(1, state.first_seq)
        found = [await self.seen.js.get_msg(EVENTS, seq=seq) for seq in range(first, state.last_seq + 1)]
        return [kind.decode(each.data or b"") for each in found if each.subject == subject(kind, "p")]

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
    scheduled = read_fields(RequestScheduled,
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
    huge = UsageRecord(key="k", request_id="r", at_ms=0, status=200, outcome="ok", usage=Usage(prompt_tokens=2**63))
    for unreadable in (body, huge.encode()):
        await scene.seen.js.publish("pm.rec.usage.record.v1.acme", unreadable)

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

    # A deleted stream is made again by its reader.
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


@pytest.mark.requirement("REGRET-1")
async def test_a_recorder_that_judges_publishes_regret_that_its_sums_agree_with(scene: Scene) -> None:
    recorder = scene.start(by_itself=True, POINTSMAN_JUDGE="true")
    await recorder.wait_ready()
    bus = scene.seen.bus
    now, count = unix_ms(), 80
    scores: dict[str, tuple[float | None, ...]] = {"least-delay": (1.0, 0.0)}
    columns = CandidateColumns(
        workers=("a", "b"), ages_ms=(1.0, 1.0), running=(0, 0), waiting=(0, 0), kv_usage=(0.0, 0.0),
        matched_tokens=(0, 0), scores=scores, totals=(12.0, 0.0),
    )  # fmt: skip
    run = ProfileRun(profile="default", chosen=("a", "b"), weights={"least-delay": 12.0}, candidates=columns)
    events: list[RequestScheduled | ResponseStarted | ResponseCompleted] = []
    for number in range(count):
        # Every other request comes while its engine computes the one before, and the other engine is idle.
        name, began = f"r-{number}", now + 1000 * (number // 2) + 5 * (number % 2)
        events.append(
            builders.scheduled(
                request_id=name, at_ms=began, prompt_tokens=1000, runs=(run,), endpoints=("a",), sequence=number + 1
            )
        )
        ended = {"request_id": name, "source": "edge-1", "sequence": number + 1, "pool": "p", "worker": "a"}
        wait = 40 if number % 2 == 0 else 75
        events.append(read_fields(ResponseStarted, ended | {"at_ms": began + wait, "ttft_ms": wait}))
        over = {"at_ms": began + wait + 160, "status": 200, "outcome": "ok", "usage": {"completion_tokens": 20}}
        events.append(read_fields(ResponseCompleted, ended | over))
    for event in sorted(events, key=lambda event: event.at_ms):
        bus.publish(event, "p")

    async def judged() -> list[RequestsJudged]:
        events = await scene.events(RequestsJudged)
        told = sum(len(event.requests) + sum(event.unjudged.values()) for event in events)
        return events if told == count else []

    verdicts = await patiently(judged)
    choices = [choice for event in verdicts for request in event.requests for choice in request.choices]
    assert sum(choice.regret_us for choice in choices) > 0

    async def sums() -> RegretSums | None:
        answer = RegretSums.decode(await bus.ask(RegretQuery(by=()), timeout=30))
        return answer if answer.rows and answer.rows[0].requests == len(choices) else None

    answer = await patiently(sums)
    assert answer.judging
    [row] = answer.rows
    assert (row.regret_us, row.cost_us) == (
        sum(choice.regret_us for choice in choices), sum(choice.cost_us for choice in choices)
    )  # fmt: skip
    story = await scene.ask_story(f"r-{count - 1}")
    last = next(RequestsJudged.decode(event.body) for event in story.events if event.type == "request.judged.v1")
    assert [request.request_id for request in last.requests] == [f"r-{count - 1}"]
