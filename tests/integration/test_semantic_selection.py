"""Selection by meaning among real processes on a real NATS server: one embedding serves the selector and the cache."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

CODE, CHAT = "Find the bug in my loop", "How was your day?"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


class Embeddings:
    """A service with OpenAI's `/v1/embeddings` that knows programs from anything else."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False
        self.url = ""

    async def embed(self, request: web.Request) -> web.Response:
        text = (await request.json())["input"]
        self.asked.append(text)
        if self.fails:
            return web.Response(status=503)
        vector = [1.0, 0.1] if any(word in text for word in ("loop", "function", "bug")) else [0.1, 1.0]
        return web.json_response({"data": [{"embedding": vector}]})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embeddings() -> AsyncIterator[Embeddings]:
    made = Embeddings()
    app = web.Application()
    app.router.add_post("/v1/embeddings", made.embed)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.01)
    made.url = str(server.make_url("/v1"))
    yield made
    await server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, embeddings: Embeddings) -> AsyncIterator[Stack]:
    model = {"use": "endpoint", "url": embeddings.url, "model": "e", "private": True, "timeout": "5s"}
    classes = {
        "programs": {"models": ["coder"], "examples": ["Write a function"]},
        "rest": {"models": ["talker"], "examples": ["Tell me a story"]},
    }
    path = {"request": ["model-selector/smart", "semantic-cache", "scheduler"], "response": ["semantic-cache"]}
    changes: dict[str, Any] = {
        "models": {
            "coder": {"pool": "llama-8b", "served_as": "llama-3.1-8b"},
            "talker": {"pool": "llama-8b", "served_as": "llama-3.1-8b"},
        },
        "caches": {"default": {"embeddings": model}},
        "selectors": {
            "smart": {
                "models": ["coder", "talker"],
                "scorers": [{"use": "semantic-match", "embeddings": model, "classes": classes}],
            }
        },
        "profiles": {"standard": path, "priority": path, "auto": path},
    }
    async with stacks.start(replicas={"semantic-cache": 1}, changes=changes, engines=1) as started:
        yield started


@pytest.mark.requirement("S3-26")
async def test_one_embedding_serves_the_selector_and_the_cache_and_words_stand_in_for_it(
    stack: Stack, embeddings: Embeddings
) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="x", max_retries=5) as ai,
        observing(stack.nats.url) as observer,
    ):
        decisions = observer.listen(RequestScheduled, ANY)

        async def note(text: str) -> str:
            """The selector's note on a request."""
            answer = await ai.chat.completions.with_raw_response.create(
                model="auto", messages=[{"role": "user", "content": text}], max_tokens=4
            )
            request_id = answer.headers["x-request-id"]
            found = await eventually(lambda: next((one for one in decisions if one.request_id == request_id), None))
            return next(each.note or "" for each in found.trail if each.stage == "model-selector")

        async def by_meaning() -> bool:
            return "endpoint:" in await note("Is this on?")

        await eventually(by_meaning)
        embeddings.asked.clear()
        assert "coder (1.00)" in await note(CODE)
        assert "talker (1.00)" in await note(CHAT)
        assert [text for text in embeddings.asked if text in (CODE, CHAT)] == [CODE, CHAT]
        embeddings.fails = True
        assert "semantic-match: lexical (embeddings unavailable)" in await note("Another bug in my loop")
