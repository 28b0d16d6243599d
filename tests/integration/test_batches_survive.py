"""A batch has one result for each line, charged once, whichever processes end while it runs."""

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.subjects import ANY
from pointsman_contracts.usage import UsageRecord
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

LINES = 300
ENDPOINT = "/v1/chat/completions"
KEY = "canary-of-acme"
OTHER_KEY = "canary-of-another"
KILLED = ("batch", "scheduler", "frontend", "preprocessor", "batch", "profile-picker")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
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
    }
    async with stacks.start(replicas=replicas, changes=changes) as started:
        yield started


@pytest.mark.requirement("BATCH-2")
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
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=KEY, max_retries=8) as ai,
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
        assert set(charged().values()) == {1}
        assert sum(record.usage.completion_tokens for record in records) == tokens
        assert {(each.identity.tenant, each.identity.key) for each in records} == {("acme", "key-of-acme")}
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
