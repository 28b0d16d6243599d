"""Files and batches through real processes, as the official clients use them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import openai
import pytest
import pytest_asyncio
from anthropic.types.messages.batch_create_params import Request
from openai.types import Batch
from openai.types.chat import ChatCompletionMessageParam

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.ended_batch import ended_batch
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
MODEL = "llama-3.1-8b"
ENDPOINT = "/v1/chat/completions"
LONG = 12_000
"""Tokens of an answer that takes some seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    async with stacks.start(replicas={"batch": 1, "recorder": 1}) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def ai(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=8) as client:
        yield client


def body(number: int, tokens: int = 5) -> dict[str, object]:
    return {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": f"Say {number}."}]}


def line(number: int, **changes: object) -> str:
    document = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body(number)} | changes
    return json.dumps(document)


def file_of(*lines: str) -> tuple[str, bytes]:
    return "input.jsonl", "\n".join(lines).encode()


async def create(ai: openai.AsyncOpenAI, *lines: str) -> Batch:
    file = await ai.files.create(file=file_of(*lines), purpose="batch")
    return await ai.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")


@pytest.mark.requirement("BATCH-1")
async def test_a_batch_of_a_hundred_lines_is_answered_once_each(ai: openai.AsyncOpenAI) -> None:
    batch = await create(ai, *(line(number) for number in range(100)))
    over = await ended_batch(ai, batch.id)
    assert over.status == "completed", over
    assert over.request_counts is not None
    assert (over.request_counts.total, over.request_counts.completed, over.request_counts.failed) == (100, 100, 0)
    assert over.error_file_id is None
    assert over.output_file_id is not None
    output = await ai.files.content(over.output_file_id)
    documents = [json.loads(each) for each in output.text.splitlines()]
    assert [each["custom_id"] for each in documents] == [f"line-{number}" for number in range(100)]
    assert {each["response"]["status_code"] for each in documents} == {200}
    assert all(each["response"]["body"]["choices"][0]["message"]["content"] for each in documents)


async def test_the_output_of_a_batch_is_listed_and_belongs_to_its_sender(ai: openai.AsyncOpenAI) -> None:
    """BerriAI/litellm #41753: batch output files are invisible to the list of files."""
    over = await ended_batch(ai, (await create(ai, line(1))).id)
    files = [each async for each in ai.files.list()]
    assert {over.input_file_id, over.output_file_id} <= {each.id for each in files}
    assert [each.id async for each in ai.files.list(purpose="batch_output") if each.id == over.output_file_id]
    assert over.id in [each.id async for each in ai.batches.list()]
    assert (await ai.files.delete(over.input_file_id)).deleted
    with pytest.raises(openai.NotFoundError):
        await ai.files.retrieve(over.input_file_id)


async def test_lines_that_fail_are_in_the_error_file_alone(ai: openai.AsyncOpenAI) -> None:
    """BerriAI/litellm #33987, #37457: a batch of errors has no output, and one bad line spoils no other."""
    strange = line(1, body={"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]})
    over = await ended_batch(ai, (await create(ai, strange, line(2))).id)
    assert over.status == "completed"
    assert over.error_file_id is not None
    assert over.request_counts is not None
    assert (over.request_counts.completed, over.request_counts.failed) == (1, 1)
    [error] = [json.loads(each) for each in (await ai.files.content(over.error_file_id)).text.splitlines()]
    assert (error["custom_id"], error["response"]["status_code"]) == ("line-1", 404)
    over = await ended_batch(ai, (await create(ai, strange)).id)
    assert (over.status, over.output_file_id) == ("completed", None)


@pytest.mark.requirement("BATCH-3")
@pytest.mark.parametrize(
    ("second", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        (line(0), "duplicate_custom_id", "custom_id"),
        (line(1, url="/v1/embeddings"), "url_mismatch", "url"),
        (line(1, body={"model": MODEL, "stream": True}), "stream_not_supported", "body.stream"),
        (line(1, body={}), "missing_required_parameter", "body.model"),
    ],
    ids=lambda value: value if isinstance(value, str) and "_" in value and " " not in value else "",
)
async def test_a_wrong_line_is_named_with_its_number_and_field(
    ai: openai.AsyncOpenAI, second: str, code: str, param: str | None
) -> None:
    over = await ended_batch(ai, (await create(ai, line(0), second)).id)
    assert over.status == "failed"
    assert over.errors is not None
    assert over.errors.data is not None
    [problem] = over.errors.data
    assert (problem.code, problem.line, problem.param) == (code, 2, param)


async def test_what_no_batch_can_be_of_is_refused_at_once(ai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await ai.files.create(file=file_of(line(1)), purpose="vision")
    with pytest.raises(openai.BadRequestError, match="no file"):
        await ai.batches.create(input_file_id="file-nowhere", endpoint=ENDPOINT, completion_window="24h")
    over = await ended_batch(ai, (await create(ai, line(1))).id)
    assert over.output_file_id is not None
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await ai.batches.create(input_file_id=over.output_file_id, endpoint=ENDPOINT, completion_window="24h")


async def test_a_cancelled_batch_keeps_its_answers_and_names_the_other_lines(ai: openai.AsyncOpenAI) -> None:
    lines = [line(number, body=body(number, 2000)) for number in range(40)]
    batch = await create(ai, *lines)
    cancelled = await ai.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    over = await ended_batch(ai, batch.id)
    assert over.status == "cancelled"
    texts = [
        (await ai.files.content(file)).text for file in (over.output_file_id, over.error_file_id) if file is not None
    ]
    documents = [json.loads(each) for text in texts for each in text.splitlines()]
    # A batch that is cancelled before its lines were counted has none.
    assert over.request_counts is not None
    assert len(documents) == over.request_counts.total
    assert {each["error"]["code"] for each in documents if each["error"]} <= {"batch_cancelled"}


@pytest.mark.requirement("BATCH-1")
async def test_anthropics_client_runs_a_message_batch(stack: Stack) -> None:
    async with anthropic.AsyncAnthropic(base_url=stack.door, api_key="unused", max_retries=8) as claude:
        requests: list[Request] = [
            {
                "custom_id": f"r-{number}",
                "params": {
                    "model": MODEL if number else "gpt-9",
                    "max_tokens": 5,
                    "messages": [{"role": "user", "content": "Hello."}],
                },
            }
            for number in range(3)
        ]
        batch = await claude.messages.batches.create(requests=requests)
        assert batch.processing_status == "in_progress"

        async def is_over() -> bool:
            return (await claude.messages.batches.retrieve(batch.id)).processing_status == "ended"

        await eventually(is_over, timeout=60)
        over = await claude.messages.batches.retrieve(batch.id)
        assert (over.request_counts.succeeded, over.request_counts.errored) == (2, 1)
        found = {each.custom_id: each.result async for each in await claude.messages.batches.results(batch.id)}
        assert {name: result.type for name, result in found.items()} == {
            "r-0": "errored",
            "r-1": "succeeded",
            "r-2": "succeeded",
        }
        assert batch.id in [each.id async for each in claude.messages.batches.list()]
        twice: list[Request] = [requests[1], requests[1]]
        with pytest.raises(anthropic.BadRequestError, match=r"requests\.1\..*custom_id"):
            await claude.messages.batches.create(requests=twice)
        assert (await claude.messages.batches.delete(batch.id)).id == batch.id
        with pytest.raises(anthropic.NotFoundError):
            await claude.messages.batches.retrieve(batch.id)


async def test_the_command_runs_a_file_and_shows_its_progress(stack: Stack, tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join(line(number) for number in range(3)))
    code, output = await stack.command("batch", "run", str(requests), "--gateway", stack.door)
    assert code == 0, output
    assert "completed: 3 of 3 lines" in output
    answers = (tmp_path / "requests.output.jsonl").read_text().splitlines()
    assert [json.loads(each)["custom_id"] for each in answers] == ["line-0", "line-1", "line-2"]
    requests.write_text(line(0, url="/v1/embeddings") + "\n" + line(1))
    code, output = await stack.command("batch", "run", str(requests), "--gateway", stack.door)
    assert code == 1
    assert "line 2: url must be /v1/embeddings" in output
    code, output = await stack.command("batch", "status", "--gateway", stack.door)
    assert code == 0
    assert "completed: 3 of 3 lines" in output


@pytest.mark.requirement("BATCH-6")
async def test_background_requests_leave_when_others_come_and_are_answered_in_the_end(
    stack: Stack, ai: openai.AsyncOpenAI
) -> None:
    async def ask(number: int, tokens: int, **headers: str) -> int:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Say {number}."}]
        answer = await ai.chat.completions.create(
            model=MODEL,
            max_tokens=tokens,
            messages=messages,
            extra_headers=headers,
            extra_body={"ignore_eos": True},
            timeout=120,
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async with observing(stack.nats.url) as observer:
        chosen, ended = observer.listen(RequestScheduled, ANY), observer.listen(ResponseCompleted, ANY)
        names = [f"background-{number}" for number in range(6)]
        background = [
            asyncio.create_task(ask(number, LONG, **{"x-priority": "batch", "x-request-id": name}))
            for number, name in enumerate(names)
        ]
        # Engines without other requests take all of them.
        await eventually(lambda: {*names} <= {each.request_id for each in chosen})
        others: list[asyncio.Task[int]] = []
        while not any(each.request_id in names for each in ended) and len(others) < 200:
            others.append(asyncio.create_task(ask(len(others), 1000)))
            await asyncio.sleep(0.05)
        assert await asyncio.gather(*background) == [LONG] * len(names)
        assert set(await asyncio.gather(*others)) == {1000}
        await eventually(lambda: {*names} <= {each.request_id for each in ended})
        stops = [
            sum(attempt.outcome == "preempted" for attempt in each.attempts)
            for each in ended
            if each.request_id in names
        ]
    assert len(stops) == len(names)
    assert 0 < max(stops) <= 2


async def test_the_documented_example_runs(stack: Stack, tmp_path: Path) -> None:
    program = tmp_path / "batch.py"
    program.write_text((ROOT / "examples" / "batch.py").read_text().replace("http://127.0.0.1:8080", stack.door))
    process = await asyncio.create_subprocess_exec(sys.executable, program, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.startswith(b"completed")
    assert output.count(b"question-") == 2
