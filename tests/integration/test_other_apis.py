"""The official clients' calls beside chats, completions and embeddings, through real processes to one engine."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
import pytest_asyncio

from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received
from pointsman_testing.stack import Stack, StackFactory

MODEL, POOL = "llama-3.1-8b", "scripted"
SOUND = b"ID3\0" + bytes(range(256))
RESPONSE = (
    b'{"id": "resp_1", "object": "response", "created_at": 1, "model": "llama-3.1-8b", "status": "completed",'
    b' "output": [], "parallel_tool_calls": true, "tool_choice": "auto", "tools": []}'
)
ANSWERS = {
    "/v1/audio/transcriptions": b'{"text": "hello"}',
    "/v1/audio/translations": b'{"text": "hello"}',
    "/v1/images/generations": b'{"created": 1, "data": [{"b64_json": "AAAA"}]}',
    "/v1/images/edits": b'{"created": 1, "data": [{"b64_json": "BBBB"}]}',
    "/v1/moderations": b'{"id": "m", "model": "llama-3.1-8b", "results": []}',
    "/v1/messages/count_tokens": b'{"input_tokens": 7}',
    "/v1/responses": RESPONSE,
    "/v1/responses/resp_1": RESPONSE,
    "/v1/responses/resp_1/cancel": RESPONSE,
    "/v1/responses/resp_1/input_items": b'{"object": "list", "data": [], "has_more": false}',
    "/v1/rerank": b'{"results": [{"index": 1, "relevance_score": 0.9}], "usage": {"prompt_tokens": 4}}',
    "/generate": b'{"text": "a", "meta_info": {"prompt_tokens": 1, "completion_tokens": 1}}',
    "/tokenize": b'{"tokens": [1, 2], "count": 2}',
}  # fmt: skip

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


class AnsweringEngine(FakeEngine):
    """Answers every path of `ANSWERS`."""

    async def _answer(self, request: Received) -> None:
        path = request.path.partition("?")[0]
        if path == "/v1/audio/speech":
            await request.answer(SOUND, content_type="audio/mpeg")
        elif path in ANSWERS:
            await request.answer(ANSWERS[path])
        else:
            await super()._answer(request)

    def last(self) -> Received:
        """The last request of a client."""
        return [request for request in self.received if request.path.partition("?")[0] in ANSWERS][-1]


class World(NamedTuple):
    """A stack before one engine."""

    stack: Stack
    engine: AnsweringEngine
    ai: openai.AsyncOpenAI


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(stacks: StackFactory) -> AsyncIterator[World]:
    async with AnsweringEngine(models={"data": [{"id": MODEL, "max_model_len": 4096}]}) as engine:
        changes: dict[str, Any] = {
            "pools": {
                "llama-8b": {"models": ["sql-lora"], "loras": ["sql-lora"]},
                POOL: {"discovery": "static", "models": [MODEL], "engines": [{"url": engine.url, "name": "w"}]},
            },
            "models": {MODEL: {"pool": POOL}},
        }
        async with (
            stacks.start(engines=0, replicas={"model-selector": 0}, changes=changes) as stack,
            openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="unused", max_retries=5) as ai,
        ):
            yield World(stack, engine, ai)


async def test_the_openai_client_transcribes_and_speaks(world: World) -> None:
    ai, file = world.ai, ("a.wav", SOUND)
    assert (await ai.audio.transcriptions.create(model=MODEL, file=file)).text == "hello"
    assert SOUND in world.engine.last().body
    speech = await ai.audio.speech.create(model=MODEL, voice="alloy", input="hello")
    assert speech.content == SOUND


async def test_the_openai_client_makes_and_edits_images_and_moderates(world: World) -> None:
    ai = world.ai
    made = await ai.images.generate(model=MODEL, prompt="a train")
    assert made.data is not None
    assert made.data[0].b64_json == "AAAA"
    edited = await ai.images.edit(model=MODEL, image=("a.png", SOUND), prompt="a train")
    assert edited.data is not None
    assert edited.data[0].b64_json == "BBBB"
    assert (await ai.moderations.create(model=MODEL, input="hello")).id == "m"


async def test_the_openai_client_finds_cancels_and_deletes_a_response(world: World) -> None:
    ai = world.ai
    made = await ai.responses.create(model=MODEL, input="hello")
    assert (await ai.responses.retrieve(made.id)).id == made.id
    assert (await ai.responses.cancel(made.id)).id == made.id
    assert (await ai.responses.input_items.list(made.id)).data == []
    await ai.responses.delete(made.id)
    assert world.engine.last().method == "DELETE"


async def test_the_anthropic_client_counts_tokens(world: World) -> None:
    async with anthropic.AsyncAnthropic(base_url=world.stack.door, api_key="unused", max_retries=5) as claude:
        counted = await claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "hello"}])
    assert counted.input_tokens == 7


async def test_paths_without_an_official_call_pass_too_with_a_model_or_a_pool(world: World) -> None:
    ai = world.ai
    documents = {"model": MODEL, "query": "a", "documents": ["b", "c"]}
    ranked: Any = await ai.post("/rerank", cast_to=object, body=documents)
    assert ranked["results"][0]["index"] == 1
    door = ai.with_options(base_url=f"{world.stack.door}/pools/{POOL}")
    generated: Any = await door.post("/generate", cast_to=object, body={"text": "a"})
    assert generated["text"] == "a"
    tokens: Any = await door.post("/tokenize", cast_to=object, body={"prompt": "a"})
    assert tokens["count"] == 2
    with pytest.raises(openai.BadRequestError, match="/pools/<pool>/tokenize"):
        await ai.with_options(base_url=world.stack.door).post("/tokenize", cast_to=object, body={"prompt": "a"})
