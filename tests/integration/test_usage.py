"""The usage of each request is in the ledger once, for every API, and also when its client leaves."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from pointsman_contracts.usage import UsageRecord
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.observer import observing
from pointsman_testing.scripted_engine import Received
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

MODEL: Final = "llama-3.1-8b"
POOL: Final = "held"
PHASES: Final = ("queued", "before the first token", "mid-stream")
PROMPT: Final[Mapping[str, object]] = {"model": MODEL, "max_tokens": 50}
MESSAGES: Final[Mapping[str, object]] = {"messages": [{"role": "user", "content": "Count to a hundred."}]}
BODIES: Final[dict[str, Mapping[str, object]]] = {
    "chat/completions": MESSAGES,
    "completions": {"prompt": "Count to a hundred."},
    "responses": {"input": "Count to a hundred."},
    "messages": MESSAGES,
    "embeddings": {"input": "Count to a hundred.", "max_tokens": None},
}
DELTAS: Final[dict[str, object]] = {
    "chat/completions": {"choices": [{"index": 0, "delta": {"content": " one"}}]},
    "completions": {"choices": [{"index": 0, "text": " one"}]},
    "responses": {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": " one"},
    "messages": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " one"}},
    "embeddings": {"data": []},
}
EVENTS: Final = 4


class HoldingEngine(FakeEngine):
    """Begins to answer, or not even that, as the header `x-phase` says; ends when its client leaves."""

    async def _answer(self, request: Received) -> None:
        if not request.path.startswith("/v1/") or request.path == "/v1/models":
            await super()._answer(request)
            return
        if request.header("x-phase") == PHASES[2]:
            if json.loads(request.body).get("stream"):
                await request.begin_stream()
                delta = json.dumps(DELTAS[request.path.removeprefix("/v1/")])
                for _ in range(EVENTS):
                    await request.chunk(f"data: {delta}\n\n".encode())
            else:
                head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
                await request.write(head.encode())
        await request.gone.wait()


class Case(NamedTuple):
    """One request, and when its client leaves."""

    api: str
    stream: bool
    phase: str


class World(NamedTuple):
    """A stack with one engine that never ends an answer."""

    stack: Stack
    engine: HoldingEngine

    async def metric(self, name: str) -> float:
        """Of the scheduler, over all pools."""
        url = self.stack.services["scheduler"][0].http_url
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
            lines = [line for line in (await answer.text()).splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def at_least(self, name: str, value: float) -> Callable[[], "asyncio.Future[bool]"]:
        """A condition: the scheduler's metric has come so far."""

        async def reached() -> bool:
            return await self.metric(name) >= value

        return lambda: asyncio.ensure_future(reached())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(stacks: StackFactory) -> AsyncIterator[World]:
    engine = HoldingEngine(models={"data": [{"id": MODEL, "max_model_len": 4096}]})
    async with engine:
        changes: dict[str, Any] = {
            "pools": {
                "llama-8b": {"models": ["sql-lora"], "loras": ["sql-lora"]},
                POOL: {"discovery": "static", "models": [MODEL], "engines": [{"url": engine.url, "name": "w"}]},
            },
            "models": {
                MODEL: {
                    "pool": POOL,
                    "cost": {"input": 1000, "output": 2000},
                    "apis": ["chat.completions", "completions", "responses", "messages", "embeddings"],
                }
            },
            "preprocessing": [{"use": "stream-usage"}],
        }
        replicas = {"recorder": 1, "model-selector": 0}
        async with stacks.start(engines=0, replicas=replicas, changes=changes) as stack:
            yield World(stack, engine)


@pytest.mark.requirement("USAGE-1")
async def test_a_client_that_hangs_up_ends_the_engines_work_and_leaves_one_record(world: World) -> None:
    cases = [Case(api, stream, phase) for api in BODIES for stream in (True, False) for phase in PHASES]
    ids = {f"request-{number}": case for number, case in enumerate(cases)}
    streaming: set[str] = set()
    async with observing(world.stack.nats.url) as seen, aiohttp.ClientSession() as http:
        for phase in PHASES:
            world.engine.waiting = 500 if phase == "queued" else 0
            await _engine_is(world, busy=phase == "queued")
            asked = [
                asyncio.create_task(_ask(http, world.stack.door, request_id, case, streaming))
                for request_id, case in ids.items()
                if case.phase == phase
            ]
            here = len(asked)
            if phase == "queued":
                await eventually(world.at_least("pointsman_scheduler_queue_requests", here))
            else:
                await eventually(lambda phase=phase, here=here: len(_begun(world.engine, phase)) == here)
                if phase == PHASES[2]:
                    await eventually(lambda: len(streaming) == len(BODIES))
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
            gone = _begun(world.engine, phase)
            await eventually(lambda gone=gone: all(request.gone.is_set() for request in gone))
            assert len(gone) == (0 if phase == "queued" else here)

        async def records() -> list[UsageRecord]:
            state = (await seen.js.stream_info("PM_USAGE")).state
            found = [await seen.js.get_msg("PM_USAGE", seq=number + 1) for number in range(state.last_seq)]
            return [UsageRecord.decode(message.data or b"") for message in found]

        async def all_there() -> list[UsageRecord] | None:
            found = await records()
            return found if len(found) >= len(ids) else None

        found = await eventually(all_there)
        assert Counter(record.request_id for record in found) == Counter(list(ids))
        for record in found:
            _check(record, ids[record.request_id])

    async def summed() -> dict[str, int] | None:
        """The recorder's sums, once it has kept every record."""
        _, rows = await world.stack.command("usage", "--by", "model", "--json")
        found = {row["model"]: row["requests"] for row in map(json.loads, rows.splitlines())}
        return found if sum(found.values()) >= len(ids) else None

    assert await eventually(summed) == {"": 10, MODEL: 20}
    [mid_stream] = [name for name, case in ids.items() if case == ("chat/completions", True, PHASES[2])]
    code, told = await world.stack.command("explain", mid_stream)
    assert code == 0, told
    for part in ("200 client_gone", f"{EVENTS} completion tokens of {MODEL}, estimated", "decided after"):
        assert part in told, told


async def _ask(http: aiohttp.ClientSession, door: str, request_id: str, case: Case, streaming: set[str]) -> None:
    """Send a request and read until the end; `streaming` gets the ids of requests that have sent all their events."""
    api, stream, phase = case
    body = {**PROMPT, **BODIES[api], "stream": stream}
    headers = {"x-request-id": request_id, "x-phase": phase}
    sent = {name: value for name, value in body.items() if value is not None}
    async with http.post(f"{door}/v1/{api}", json=sent, headers=headers) as answer:
        seen = b""
        async for data in answer.content.iter_any():
            seen += data
            if seen.count(b"data:") == EVENTS:
                streaming.add(request_id)


def _begun(engine: HoldingEngine, phase: str) -> list[Received]:
    return [request for request in engine.received if request.header("x-phase") == phase]


async def _engine_is(world: World, *, busy: bool) -> None:
    """Wait until the pool is known to be full, or not to be."""

    async def known() -> bool:
        url = world.stack.services["metrics-collector"][0].http_url
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        waiting = [line for line in lines if line.startswith("pointsman_worker_waiting_requests{")]
        return bool(waiting) and all((float(line.rpartition(" ")[2]) > 0) == busy for line in waiting)

    await eventually(known)


def _check(record: UsageRecord, case: Case) -> None:
    api, stream, phase = case
    usage = record.usage
    assert (record.outcome, record.model) == ("client_gone", "" if phase == "queued" else MODEL), record
    if phase == "queued":
        # No engine was at work.
        assert (usage.prompt_tokens, usage.completion_tokens, record.cost_nanos) == (0, 0, None), record
        return
    assert usage.estimated, record
    assert usage.prompt_tokens > 0, record
    passed = EVENTS if stream and phase == PHASES[2] and api != "embeddings" else 0
    assert usage.completion_tokens == passed, record
    assert record.cost_nanos == (usage.prompt_tokens * 1000 + passed * 2000) * 1000
