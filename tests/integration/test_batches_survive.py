"""A batch has one result for each line, and a work queue one for each item, charged once, whichever processes end."""

import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import openai
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from nats.js import JetStreamContext
from nats.js.errors import Error as JetStreamError
from pydantic import JsonValue

from pointsman_contracts.batch import WORK_PREFIX
from pointsman_contracts.subjects import ANY, REST, subject
from pointsman_contracts.usage import UsageRecord
from pointsman_contracts.work import WORK_RESULTS_STREAM, WorkItem, WorkResult
from pointsman_testing import eventually
from pointsman_testing.ended_batch import ended_batch
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
LINES = 300
ITEMS = 60
QUEUE = "nightly"
ENDPOINT = "/v1/chat/completions"
KEY = "canary-of-acme"
OTHER_KEY = "canary-of-another"
KILLED = ("batch", "scheduler", "frontend", "preprocessor", "batch", "profile-picker")


class Receiver:
    """Takes callbacks; `status` is the next answer, and then 200."""

    def __init__(self) -> None:
        self.bodies: list[WorkResult] = []
        self.keys: list[str] = []
        self.status = 200
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(WorkResult.decode(await request.read()))
        self.keys.append(request.headers["idempotency-key"])
        status, self.status = self.status, 200
        return web.Response(status=status, headers={"location": f"{self.url}elsewhere"} if status == 302 else {})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", found.take)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.01)
    found.url = str(server.make_url("/"))
    yield found
    await server.close()


@pytest_asyncio.fixture(loop_scope="module")
async def js(stack: Stack) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(stack.nats.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    yield client.jetstream(timeout=30)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, receiver: Receiver) -> AsyncIterator[Stack]:
    replicas = {"batch": 2, "recorder": 1, "scheduler": 2}
    keys: list[JsonValue] = [
        {"id": f"key-of-{tenant}", "tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        for tenant, key in (("acme", KEY), ("other", OTHER_KEY))
    ]
    changes: dict[str, JsonValue] = {
        "preprocessing": [{"use": "api-key-auth", "keys": keys}],
        "models": {
            "llama-3.1-8b": {"pool": "llama-8b", "cost": {"input": 100, "output": 1000, "tiers": {"batch": 0.5}}},
            "sql-lora": {"pool": "llama-8b"},
        },
        "queues": {QUEUE: {"tenant": "acme", "callbacks": [f"{receiver.url}results"]}},
    }
    async with stacks.start(replicas=replicas, changes=changes) as started:
        yield started


def item(name: str, **changes: JsonValue) -> bytes:
    body: JsonValue = {
        "model": "llama-3.1-8b",
        "max_tokens": 30,
        "messages": [{"role": "user", "content": f"Say {name}."}],
    }
    return json.dumps({"id": name, "body": body} | changes).encode()


async def publish(js: JetStreamContext, data: bytes, queue: str = QUEUE) -> int:
    """The item's sequence. The stream is there once a batch service is."""
    sequences: list[int] = []

    async def stored() -> bool:
        try:
            sequences.append((await js.publish(subject(WorkItem, queue), data)).seq)
        except (JetStreamError, TimeoutError):
            return False
        return True

    await eventually(stored)
    return sequences[-1]


async def result_of(js: JetStreamContext, name: str) -> WorkResult:
    """The result of an item, once it has one."""
    found: list[WorkResult] = []

    async def there() -> bool:
        try:
            message = await js.get_last_msg(WORK_RESULTS_STREAM, subject(WorkResult, QUEUE, "-", name))
        except (JetStreamError, TimeoutError):
            return False
        found.append(WorkResult.decode(message.data or b""))
        return True

    await eventually(there, timeout=60)
    return found[-1]


@pytest.mark.requirement("BATCH-2")
async def test_each_line_has_one_result_and_one_charge_whichever_process_is_killed(
    stack: Stack, js: JetStreamContext
) -> None:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": ENDPOINT,
            "body": {
                "model": "llama-3.1-8b",
                "max_tokens": 30,
                "messages": [{"role": "user", "content": f"Say {number}."}],
            },
        }
        for number in range(LINES)
    ]
    records: list[UsageRecord] = []
    async with (
        observing(stack.nats.url) as observer,
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=KEY, max_retries=8) as ai,
    ):
        seen = observer.listen(UsageRecord, ANY)
        text = "\n".join(map(json.dumps, lines)).encode()
        file = await ai.files.create(file=("lines.jsonl", text), purpose="batch")
        batch = await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        for number in range(ITEMS):
            await publish(js, item(f"item-{number}"))
        for number, service in enumerate(KILLED):
            reached = LINES * (number + 1) // (len(KILLED) + 2)

            async def has_come_so_far(least: int = reached) -> bool:
                counts = (await ai.batches.retrieve(batch.id)).request_counts
                return counts is not None and counts.completed >= least

            await eventually(has_come_so_far, timeout=60)
            # Of two replicas of `batch` the one that runs the batch dies at the first or at the second time.
            index = 1 if service == "batch" and number else 0
            stack.services[service][index].kill()
            await stack.restart(service, index)

        over = await ended_batch(ai, batch.id)
        assert over.status == "completed"
        assert over.output_file_id is not None
        documents = [json.loads(each) for each in (await ai.files.content(over.output_file_id)).text.splitlines()]
        assert [each["custom_id"] for each in documents] == [f"line-{number}" for number in range(LINES)]
        tokens = sum(each["response"]["body"]["usage"]["completion_tokens"] for each in documents)

        def charged() -> Counter[str]:
            records[:] = [each for each in seen if each.identity.batch == batch.id and each.usage.completion_tokens]
            return Counter(record.request_id.split(".")[0] for record in records)

        await eventually(lambda: len(charged()) == LINES)
        assert set(charged().values()) == {1}
        assert sum(record.usage.completion_tokens for record in records) == tokens
        assert {(each.identity.tenant, each.identity.key) for each in records} == {("acme", "key-of-acme")}
        # Items of the queue ran at the same time.
        await asyncio.gather(*(result_of(js, f"item-{number}") for number in range(ITEMS)))
        info = await js.stream_info(WORK_RESULTS_STREAM, subjects_filter=subject(WorkResult, QUEUE, REST))
        assert sorted((info.state.subjects or {}).values()) == [1] * ITEMS

        def charged_items() -> Counter[str]:
            of_queue = [
                each for each in seen if each.identity.batch.startswith(WORK_PREFIX) and each.usage.completion_tokens
            ]
            assert {each.identity.tenant for each in of_queue} <= {"acme"}
            return Counter(record.request_id.split(".")[0] for record in of_queue)

        await eventually(lambda: len(charged_items()) == ITEMS)
        assert set(charged_items().values()) == {1}
        # Nano-dollars at half of 100 and 1,000 dollars per million tokens.
        assert all(
            each.cost_nanos == 50_000 * each.usage.prompt_tokens + 500_000 * each.usage.completion_tokens
            for each in records
        )


@pytest.mark.requirement("BATCH-4")
async def test_files_and_batches_belong_to_the_tenant_of_their_key(stack: Stack) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=KEY, max_retries=8) as ai,
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=OTHER_KEY, max_retries=8) as other,
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unknown", max_retries=0) as unknown,
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="pm-lent-guessed", max_retries=0) as guessing,
    ):
        file = await ai.files.create(file=("lines.jsonl", b"{}"), purpose="batch")
        batch = await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(file.id)
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await call(batch.id)
        with pytest.raises(openai.BadRequestError):
            await other.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        assert not (await other.batches.list()).data
        assert not (await other.files.list()).data
        for stranger in (unknown, guessing):
            with pytest.raises(openai.AuthenticationError):
                await stranger.files.list()
            with pytest.raises(openai.AuthenticationError):
                await stranger.chat.completions.create(
                    model="llama-3.1-8b", messages=[{"role": "user", "content": "Hello."}]
                )


@pytest.mark.requirement("BATCH-5")
async def test_the_producer_of_a_wrong_item_is_told_what_is_wrong(stack: Stack, js: JetStreamContext) -> None:
    del stack
    wrong: dict[str, tuple[bytes, str | None]] = {
        "no-model": (item("no-model", body={}), "body.model"),
        "streamed": (item("streamed", body={"model": "m", "stream": True}), "body.stream"),
        "no-endpoint": (item("no-endpoint", endpoint="/v1/files"), "endpoint"),
        "strange-callback": (item("strange-callback", callback="http://169.254.169.254/latest"), "callback"),
    }
    for name, (data, param) in wrong.items():
        await publish(js, data)
        result = await result_of(js, name)
        assert (result.error, result.param, result.status) == ("invalid_item", param, None), result
    sequence = await publish(js, b"{")
    assert (await result_of(js, f"sequence-{sequence}")).error == "invalid_item"
    await publish(js, item("late", expires_ms=1))
    assert (await result_of(js, "late")).error == "item_expired"


@pytest.mark.requirement("BATCH-5")
async def test_a_callback_gets_the_result_until_its_receiver_accepts_it(
    stack: Stack, js: JetStreamContext, receiver: Receiver
) -> None:
    del stack
    receiver.status = 503
    await publish(js, item("called", callback=f"{receiver.url}results/1"))
    result = await result_of(js, "called")
    assert result.status == 200
    await eventually(lambda: len(receiver.bodies) == 2)
    assert receiver.bodies == [result, result]
    assert len({*receiver.keys}) == 1
    # A second item of this id is no second request; a redirect isn't followed.
    receiver.status = 302
    await publish(js, item("called", callback=f"{receiver.url}results/2"))
    await eventually(lambda: len(receiver.bodies) == 3)
    assert receiver.bodies[2] == result


@pytest.mark.requirement("BATCH-5")
async def test_the_documented_producer_gets_its_answers(stack: Stack) -> None:
    program = str(ROOT / "examples" / "work_faststream.py")
    env = {"POINTSMAN_NATS_URL": stack.nats.url, "WORK_QUEUE": QUEUE}
    process = await asyncio.create_subprocess_exec(sys.executable, program, env=env, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0
    assert sorted(line.split(b":")[0] for line in output.splitlines()) == [b"batch", b"queue"]
