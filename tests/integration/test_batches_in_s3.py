"""A batch whose files are in a store that speaks S3's protocol."""

# botocore has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
from collections.abc import Iterator

import openai
import pytest
from botocore.session import get_session
from moto.server import ThreadedMotoServer

from pointsman_testing import eventually
from pointsman_testing.stack import StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

BUCKET = "files-of-one-batch"
"""In no other test: the servers of a process share what they keep."""
ENDPOINT = "/v1/chat/completions"
CANARY = "canary-of-the-store"
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
