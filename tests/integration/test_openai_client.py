"""The official `openai` client against real processes on a real NATS server."""

import httpx
import openai
import pytest

from pointsman_testing.stack import Stack

pytestmark = [pytest.mark.requirement("JOURNEY-1"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


def client(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=0)


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
    async with httpx.AsyncClient(base_url=stack.door) as http:
        body = {"model": "llama-3.1-8b", "prompt": "x", "max_tokens": 1}
        kept = await http.post("/v1/completions", json=body, headers={"x-request-id": "mine-1"})
        made = await http.post("/v1/completions", json=body)
    assert kept.headers["x-request-id"] == "mine-1"
    assert len(made.headers["x-request-id"]) >= 16
