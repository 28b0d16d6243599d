"""A batch has one result for each line, charged once, whichever processes end while it runs."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from pointsman_contracts.subjects import ANY
from pointsman_contracts.usage import UsageRecord
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

LINES = 300
ENDPOINT = "/v1/chat/completions"
KILLED = ("batch", "scheduler", "frontend", "preprocessor", "batch", "profile-picker")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    replicas = {"batch": 2, "recorder": 1, "scheduler": 2}
    async with stacks.start(replicas=replicas) as started:
        yield started


async def test_each_line_has_one_result_and_one_charge_whichever_process_is_killed(stack: Stack) -> None:
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
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=8) as ai,
    ):
        seen = observer.listen(UsageRecord, ANY)
        text = "\n".join(map(json.dumps, lines)).encode()
        file = await ai.files.create(file=("lines.jsonl", text), purpose="batch")
        batch = await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
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

        async def is_over() -> bool:
            return (await ai.batches.retrieve(batch.id)).status == "completed"

        await eventually(is_over, timeout=90)
        over = await ai.batches.retrieve(batch.id)
        assert over.output_file_id is not None
        documents = [json.loads(each) for each in (await ai.files.content(over.output_file_id)).text.splitlines()]
        assert [each["custom_id"] for each in documents] == [f"line-{number}" for number in range(LINES)]
        tokens = sum(each["response"]["body"]["usage"]["completion_tokens"] for each in documents)

        def charged() -> Counter[str]:
            records[:] = [each for each in seen if each.identity.batch == batch.id and each.usage.completion_tokens]
            return Counter(record.request_id.split(".")[0] for record in records)

        await eventually(lambda: len(charged()) == LINES, timeout=30)
        await asyncio.sleep(0)
        assert set(charged().values()) == {1}
        assert sum(record.usage.completion_tokens for record in records) == tokens
