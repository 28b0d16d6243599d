"""The official `openai` and `anthropic` clients against real processes on a real NATS server."""

import json
from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from anthropic.types import MessageParam, TextBlock, ToolParam
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack

MODEL = "llama-3.1-8b"
PARAMETERS: dict[str, object] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SAID: list[MessageParam] = [{"role": "user", "content": "Say something."}]

pytestmark = [pytest.mark.requirement("JOURNEY-1"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


def client(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=5)


@pytest_asyncio.fixture(loop_scope="module")
async def claude(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=stack.door, api_key="unused", max_retries=5) as client:
        yield client


async def test_it_lists_the_models(stack: Stack) -> None:
    async with client(stack) as ai:
        assert {model.id for model in (await ai.models.list()).data} >= {"llama-3.1-8b", "sql-lora"}
        assert (await ai.models.retrieve("sql-lora")).id == "sql-lora"
        with pytest.raises(openai.NotFoundError, match=r"llama-3\.1-8b"):
            await ai.models.retrieve("gpt-9")


async def test_it_completes_a_chat_with_usage(stack: Stack) -> None:
    async with client(stack) as ai:
        answer = await ai.chat.completions.create(
            model="llama-3.1-8b", messages=[{"role": "user", "content": "Say something."}], max_tokens=12,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.model == "llama-3.1-8b"


async def test_it_streams_a_chat_as_it_is_made(stack: Stack) -> None:
    async with client(stack) as ai:
        stream = await ai.chat.completions.create(
            model="llama-3.1-8b", messages=[{"role": "user", "content": "Say something long."}], max_tokens=40,
            stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 5
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


async def test_it_completes_text_and_makes_embeddings(stack: Stack) -> None:
    async with client(stack) as ai:
        text = await ai.completions.create(model="sql-lora", prompt="SELECT", max_tokens=5)
        assert text.choices[0].text
        vector = await ai.embeddings.create(model="llama-3.1-8b", input="some words", encoding_format="float")
        assert len(vector.data[0].embedding) > 1


@pytest.mark.requirement("JOURNEY-2")
async def test_auto_is_answered_by_a_model_that_the_selector_chose(stack: Stack) -> None:
    async with client(stack) as ai:
        answer = await ai.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "Whoever is cheap."}], max_tokens=4
        )
    assert answer.choices[0].message.content


async def test_its_errors_are_typed(stack: Stack) -> None:
    async with client(stack) as ai:
        with pytest.raises(openai.NotFoundError) as unknown:
            await ai.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        assert unknown.value.code == "model_not_found"
        assert "llama-3.1-8b" in unknown.value.message
        with pytest.raises(openai.BadRequestError) as malformed:
            await ai.chat.completions.create(model="llama-3.1-8b", messages="not a list")  # pyright: ignore[reportArgumentType, reportCallIssue] # the mistake under test
        assert malformed.value.param == "messages"
        assert malformed.value.type == "invalid_request_error"


async def test_the_request_id_of_the_client_is_kept_and_a_missing_one_is_made(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.door, timeout=60) as http:
        body = {"model": "llama-3.1-8b", "prompt": "x", "max_tokens": 1}

        async def ask(**headers: str) -> tuple[int, str]:
            answer = await http.post("/v1/completions", json=body, headers=headers)
            return answer.status_code, answer.headers["x-request-id"]

        kept = await answered(lambda: ask(**{"x-request-id": "mine-1"}))
        made = await answered(ask)
    assert kept == (200, "mine-1")
    assert (made[0], len(made[1]) >= 16) == (200, True)


async def test_it_calls_tools_in_a_chat_streamed_or_not(stack: Stack) -> None:
    say: ChatCompletionToolParam = {"type": "function", "function": {"name": "say", "parameters": PARAMETERS}}
    async with client(stack) as ai:
        whole = await ai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], tools=[say], tool_choice="required"
        )
        async with ai.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "x"}], tools=[say], tool_choice="required"
        ) as stream:
            streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        [call] = list(answer.choices[0].message.tool_calls or ())
        assert call.type == "function"
        assert call.function.name == "say"
        assert json.loads(call.function.arguments)["text"]
        assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.requirement("JOURNEY-3")
async def test_it_makes_responses_whole_streamed_and_with_tools(stack: Stack) -> None:
    say: FunctionToolParam = {"type": "function", "name": "say", "parameters": PARAMETERS, "strict": False}
    async with client(stack) as ai:
        whole = await ai.responses.create(model=MODEL, input="Say something.", instructions="Be brief.")
        async with ai.responses.stream(model=MODEL, input="Say something.", instructions="Be brief.") as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
        called = await ai.responses.create(model=MODEL, input="Say it.", tools=[say], tool_choice="required")
    assert whole.status == "completed"
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens > 0
    assert (streamed.output_text, streamed.usage and streamed.usage.output_tokens) == (
        whole.output_text, whole.usage.output_tokens,
    )  # fmt: skip
    assert kinds.count("response.output_text.delta") == whole.usage.output_tokens
    [call] = called.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert json.loads(call.arguments)["text"]


@pytest.mark.requirement("JOURNEY-3")
async def test_the_anthropic_client_gets_messages_whole_streamed_and_with_tools(
    claude: anthropic.AsyncAnthropic,
) -> None:
    whole = await claude.messages.create(model=MODEL, max_tokens=12, messages=SAID, system="Be brief.")
    async with claude.messages.stream(model=MODEL, max_tokens=12, messages=SAID, system="Be brief.") as stream:
        pieces = [piece async for piece in stream.text_stream]
        streamed = await stream.get_final_message()
    say: ToolParam = {"name": "say", "input_schema": {"type": "object"} | PARAMETERS}
    called = await claude.messages.create(
        model=MODEL, max_tokens=400, messages=SAID, tools=[say], tool_choice={"type": "any"}
    )
    [text] = whole.content
    assert isinstance(text, TextBlock)
    assert [block.text for block in streamed.content if block.type == "text"] == [text.text] == ["".join(pieces)]
    assert len(pieces) == whole.usage.output_tokens == streamed.usage.output_tokens == 12
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert whole.usage.input_tokens > 0
    assert called.content[0].type == "tool_use"
    assert called.stop_reason == "tool_use"


@pytest.mark.requirement("JOURNEY-3")
async def test_the_errors_of_messages_are_anthropics(stack: Stack, claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match=r"llama-3\.1-8b") as unknown:
        await claude.messages.create(model="claude-9", max_tokens=1, messages=SAID)
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="messages") as malformed:
        await claude.messages.create(model=MODEL, max_tokens=1, messages=[])
    assert malformed.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="context length"):
        await claude.messages.create(model=MODEL, max_tokens=10**7, messages=SAID, stream=True)
    async with httpx.AsyncClient(timeout=60) as http:
        wrong = await http.get(f"{stack.door}/v1/messages")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")


@pytest.mark.requirement("JOURNEY-3")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": SAID, "max_tokens": 9, "ignore_eos": True}),
        ("completions", {"prompt": "x", "max_tokens": 9, "ignore_eos": True}),
        ("responses", {"input": "x", "max_output_tokens": 9}),
        ("messages", {"messages": SAID, "max_tokens": 9}),
        ("embeddings", {"input": "some words"}),
    ],
)
async def test_the_usage_of_an_answer_is_reported_by_every_api(
    stack: Stack, path: str, body: dict[str, object], stream: bool
) -> None:
    options: dict[str, object] = {"stream": True} if stream and path != "embeddings" else {}
    if options and path.endswith("completions"):
        options["stream_options"] = {"include_usage": True}
    async with observing(stack.nats.url) as seen:
        completions = seen.listen(ResponseCompleted, ANY)
        async with httpx.AsyncClient(timeout=60) as http:

            async def ask() -> tuple[int, str]:
                answer = await http.post(f"{stack.door}/v1/{path}", json={"model": MODEL} | body | options)
                return answer.status_code, answer.headers["x-request-id"]

            status, mine = await answered(ask)
        assert status == 200
        await eventually(lambda: any(each.request_id == mine for each in completions))
    [completed] = [each for each in completions if each.request_id == mine]
    assert completed.usage is not None
    assert completed.usage.prompt_tokens > 0
    assert completed.usage.completion_tokens == (0 if path == "embeddings" else 9)
