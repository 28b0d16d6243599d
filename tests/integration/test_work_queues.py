"""Work queues beside each other: one whose tenant is at its limit doesn't keep the others waiting."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import nats
import openai
import pytest
import pytest_asyncio
from nats.js.errors import Error as JetStreamError
from pydantic import JsonValue

from pointsman_contracts.subjects import REST, subject
from pointsman_contracts.work import WORK_RESULTS_STREAM, WorkItem, WorkResult
from pointsman_testing import eventually
from pointsman_testing.ended_batch import ended_batch
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

ENDPOINT = "/v1/chat/completions"
KEY = "canary-of-the-third"
LIMITED, FREE = "limited", "free"
MOST_AT_ONCE = 64
"""Lines that a replica has open at most (`lines_at_once`)."""
BODY: JsonValue = {"model": "llama-3.1-8b", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello."}]}


@pytest_asyncio.fixture(loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    keys: list[JsonValue] = [{"tenant": "third", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]
    changes: dict[str, JsonValue] = {
        "preprocessing": [
            {"use": "api-key-auth", "keys": keys},
            {"use": "request-limit", "per": ["tenant"], "rate": "20/h", "burst": 20},
        ],
        "queues": {LIMITED: {"tenant": "one"}, FREE: {"tenant": "another"}},
    }
    async with stacks.start(replicas={"batch": 1, "recorder": 1}, changes=changes) as started:
        yield started


@pytest.mark.requirement("BATCH-5")
async def test_a_queue_whose_tenant_is_at_its_limit_keeps_no_other_queue_and_no_batch_waiting(stack: Stack) -> None:
    client = await nats.connect(stack.nats.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    js = client.jetstream(timeout=30)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    async def is_published(queue: str, number: int) -> bool:
        try:
            data = json.dumps({"id": f"item-{number}", "body": BODY}).encode()
            await js.publish(subject(WorkItem, queue), data)
        except (JetStreamError, TimeoutError):
            return False  # the service makes the stream
        return True

    async def results(queue: str) -> int:
        wanted = subject(WorkResult, queue, REST)
        return len((await js.stream_info(WORK_RESULTS_STREAM, subjects_filter=wanted)).state.subjects or {})

    for number in range(4 * MOST_AT_ONCE):
        await eventually(lambda number=number: asyncio.ensure_future(is_published(LIMITED, number)))

    async def is_at_its_limit() -> bool:
        return await results(LIMITED) == 20

    await eventually(is_at_its_limit, timeout=60)
    for number in range(5):
        await eventually(lambda number=number: asyncio.ensure_future(is_published(FREE, number)))

    async def has_results() -> bool:
        return await results(FREE) == 5

    await eventually(has_results)
    async with openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=KEY, max_retries=8) as ai:
        document = {"custom_id": "a", "method": "POST", "url": ENDPOINT, "body": BODY}
        file = await ai.files.create(file=("lines.jsonl", json.dumps(document).encode()), purpose="batch")
        batch = await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        assert (await ended_batch(ai, batch.id)).status == "completed"
    assert await results(LIMITED) == 20
    await client.close()
