"""A batch whose files are in a store that speaks S3's protocol."""

# botocore has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import openai
import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from pointsman_contracts.subjects import ANY
from pointsman_contracts.usage import UsageRecord
from pointsman_testing import eventually
from pointsman_testing.ended_batch import ended_batch
from pointsman_testing.faulty_store import FaultyStore
from pointsman_testing.observer import observing
from pointsman_testing.stack import StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

BUCKET = "files-of-one-batch"
"""In no other test: the servers of a process share what they keep."""
ENDPOINT = "/v1/chat/completions"
CANARY = "canary-of-the-store"
LINES = 30
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "a-key",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The store's URL."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def test_the_files_of_a_batch_are_in_the_configured_bucket_and_its_credentials_in_no_log(
    stacks: StackFactory, store: str
) -> None:
    client = get_session().create_client("s3", endpoint_url=store)
    client.create_bucket(Bucket=BUCKET)
    settings = {**CREDENTIALS, "POINTSMAN_FILES_S3_BUCKET": BUCKET, "POINTSMAN_FILES_S3_ENDPOINT": store}
    async with (
        stacks.start(engines=1, replicas={"batch": 1, "recorder": 1}, settings=settings) as stack,
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=8) as ai,
    ):
        body = {"model": "llama-3.1-8b", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello."}]}
        document = {"custom_id": "a", "method": "POST", "url": ENDPOINT, "body": body}
        file = await ai.files.create(file=("lines.jsonl", json.dumps(document).encode()), purpose="batch")
        batch = await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")

        async def is_over() -> bool:
            return (await ai.batches.retrieve(batch.id)).status == "completed"

        await eventually(is_over, timeout=60)
        output = (await ai.batches.retrieve(batch.id)).output_file_id
        assert output is not None
        [answer] = (await ai.files.content(output)).text.splitlines()
        assert json.loads(answer)["response"]["status_code"] == 200
        found = client.list_objects_v2(Bucket=BUCKET)["Contents"]
        assert {each["Key"] for each in found} == {f"pointsman/{each}/0" for each in (file.id, output)}
        await ai.files.delete(file.id)
        assert client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1
        assert not [process for process in stack.all_services() if CANARY in process.log_text()]
    client.close()


async def test_a_store_that_fails_while_a_batch_runs_loses_no_line_and_its_clients_are_told(
    stacks: StackFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": ENDPOINT,
            "body": {
                "model": "llama-3.1-8b",
                "max_tokens": 5,
                "messages": [{"role": "user", "content": f"Say {number}."}],
                # Each line is a chunk and more, so that the input isn't read ahead.
                "user": "x" * 600_000,
            },
        }
        for number in range(LINES)
    ]
    records: list[UsageRecord] = []
    async with FaultyStore() as store:
        settings = {**CREDENTIALS, "POINTSMAN_FILES_S3_BUCKET": BUCKET, "POINTSMAN_FILES_S3_ENDPOINT": store.url}
        async with (
            stacks.start(engines=1, replicas={"batch": 1, "recorder": 1}, settings=settings) as stack,
            openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=8) as ai,
            openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=0) as once,
            observing(stack.nats.url) as observer,
        ):
            seen = observer.listen(UsageRecord, ANY)
            small = await ai.files.create(file=("small.jsonl", b"{}\n"), purpose="batch")
            file = await ai.files.create(file=("a.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
            batch = await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")

            [process] = stack.services["batch"]

            def said() -> Counter[object]:
                return Counter(line["event"] for line in process.log_lines())

            async def completed(least: int) -> bool:
                counts = (await ai.batches.retrieve(batch.id)).request_counts
                return counts is not None and counts.completed >= least

            async def reads() -> bool:
                """Read a file: a batch may have read all of its input before a fault begins or ends."""
                with suppress(openai.APIStatusError):
                    await once.files.content(small.id)
                    return True
                return False

            async def refuses() -> bool:
                return not await reads() and store.refused > 2

            async def serves_again(least: int) -> bool:
                return await reads() and said()["file_store_again"] >= least

            for number, fault in enumerate(("slow down", "denied", "truncated", "short", "away")):
                await eventually(lambda least=number * 2: completed(least), timeout=100)
                store.refused, store.fault = 0, fault
                await eventually(refuses, timeout=100)
                with pytest.raises(openai.APIStatusError) as refused:
                    await once.files.content(small.id)
                assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
                if fault not in ("truncated", "short"):
                    with pytest.raises(openai.APIStatusError) as refused:
                        await once.files.create(file=("b.jsonl", b"{}\n"), purpose="batch")
                    assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
                store.fault = None
                await eventually(lambda least=number + 1: serves_again(least), timeout=100)
            over = await ended_batch(ai, batch.id)
            assert (over.status, over.output_file_id is not None) == ("completed", True)
            answers = (await ai.files.content(over.output_file_id or "")).text.splitlines()
            found = [json.loads(answer) for answer in answers]
            assert [each["custom_id"] for each in found] == [each["custom_id"] for each in lines]

            def charged() -> Counter[str]:
                records[:] = [each for each in seen if each.identity.batch == batch.id and each.usage.completion_tokens]
                return Counter(record.request_id.split(".")[0] for record in records)

            await eventually(lambda: len(charged()) == LINES, timeout=60)
            assert set(charged().values()) == {1}
            assert said()["file_store_failing"] == said()["file_store_again"]
            assert not said()["run_failed"]
            assert not said()["batch_taken_over"]
