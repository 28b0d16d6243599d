"""The semantic-cache among real processes on a real NATS server, with the official client."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg
from openai.types.chat import ChatCompletion

from pointsman_contracts.response import RequestAnswered, ResponseCompleted, ResponseReviewed, Usage
from pointsman_contracts.subjects import ANY, stage_subject
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

MODEL = "llama-3.1-8b"
TOLD = "x-pointsman-cache"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


def _key(tenant: str) -> dict[str, str]:
    return {"id": tenant, "sha256": hashlib.sha256(tenant.encode()).hexdigest(), "tenant": tenant}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    """A stack whose answers are looked up, checked and kept."""
    checked = {"request": ["semantic-cache", "scheduler"], "response": ["guard", "semantic-cache"], "static": "deny"}
    changes: dict[str, Any] = {
        "preprocessing": [{"use": "api-key-auth", "keys": [_key("acme"), _key("globex")]}],
        "caches": {"default": {"embeddings": "lexical"}},
        "guards": {"default": {"otherwise": "flag"}},
        "edge": {"silent_wait": "3s"},
        "profiles": {"standard": checked, "priority": checked, "auto": {"request": ["scheduler"], "static": "deny"}},
    }
    async with stacks.start(replicas={"semantic-cache": 1, "guard": 1}, changes=changes, engines=1) as started:
        yield started


@asynccontextmanager
async def client(stack: Stack, tenant: str = "acme") -> AsyncGenerator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=tenant, max_retries=5) as ai:
        yield ai


async def ask(ai: openai.AsyncOpenAI, text: str, **headers: str) -> tuple[str | None, ChatCompletion]:
    """The cache's verdict, and the answer."""

    async def told() -> tuple[str | None, ChatCompletion] | None:
        raw = await ai.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": text}], extra_headers=headers
        )
        # Without a word the cache wasn't asked: it is skipped while it doesn't answer.
        return (raw.headers[TOLD], raw.parse()) if TOLD in raw.headers else None

    return await eventually(told)


async def kept(ai: openai.AsyncOpenAI, text: str) -> ChatCompletion:
    """An answer, once it is in the cache."""

    async def hit() -> ChatCompletion | None:
        told, answer = await ask(ai, text)
        return answer if told == "hit" else None

    return await eventually(hit)


@pytest.mark.requirement("S3-13", "S3-21", "S3-23")
async def test_a_second_request_is_answered_without_a_model_and_says_so(stack: Stack) -> None:
    async with client(stack) as ai, observing(stack.nats.url) as observer:
        completions = observer.listen(ResponseCompleted, ANY)
        told = observer.listen(RequestAnswered, ANY)
        reviewed = observer.listen(ResponseReviewed, ANY)
        first = await ask(ai, "Why is the sky blue at noon?")
        assert first[0] == "miss"
        # The first answer is kept when its client has it: until then a request like it is a first one too.
        again = await kept(ai, "Why is the sky blue at noon?")
        last = await ask(ai, "Why is the sky blue at noon?")
        assert last == ("hit", again)
        await eventually(lambda: completions and completions[-1].answered_by and told and reviewed)
    [kept_report] = reviewed[0].stages
    assert (reviewed[0].request_id, kept_report.stage, kept_report.note) == (
        completions[0].request_id,
        "semantic-cache",
        "kept",
    )
    assert kept_report.took_ms > 0
    done = completions[-1]
    assert (done.answered_by, done.outcome, done.worker, done.usage) == ("semantic-cache", "ok", None, Usage())
    assert again.usage is not None
    assert done.saved is not None
    assert (done.saved.completion_tokens, done.identity and done.identity.tenant) == (
        again.usage.completion_tokens,
        "acme",
    )
    assert [report.stage for report in told[-1].trail][-1] == "semantic-cache"
    code, output = await stack.command("explain", done.request_id)
    assert code == 0, output
    assert "answered by semantic-cache" in output
    code, output = await stack.command("explain", reviewed[0].request_id)
    assert code == 0, output
    assert "after the last byte  semantic-cache passed" in output


@pytest.mark.requirement("CACHE-6")
async def test_a_stream_is_given_again_as_a_stream(stack: Stack) -> None:
    async with client(stack) as ai:

        async def streamed() -> tuple[str | None, list[str]]:
            raw = await ai.chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": "Tell me of trains."}], stream=True
            )
            assert raw.headers["content-type"].startswith("text/event-stream")
            return raw.headers.get(TOLD), [chunk.model_dump_json() async for chunk in raw.parse()]

        by_the_model: list[list[str]] = []

        async def hit() -> list[str] | None:
            told, chunks = await streamed()
            if told == "hit":
                return chunks
            assert told == "miss"
            by_the_model.append(chunks)
            return None

        again = await eventually(hit)
        assert len(again) > 2
        # Any of those that were asked for until one was kept.
        assert again in by_the_model
        # Who asks for a document gets none of a stream's.
        assert (await ask(ai, "Tell me of trains."))[0] == "miss"


@pytest.mark.requirement("CACHE-2", "CACHE-4", "CACHE-5")
async def test_only_the_same_question_of_the_same_tenant_gets_the_answer(stack: Stack) -> None:
    async with client(stack) as ai, client(stack, "globex") as other:
        answer = await kept(ai, "How do I make pancakes with eggs?")
        assert await ask(ai, "How can I make pancakes with eggs?") == ("semantic", answer)
        assert (await ask(ai, "How do I make pancakes without eggs?"))[0] == "miss"
        told, foreign = await ask(other, "How do I make pancakes with eggs?")
        assert told == "miss"
        assert foreign.id != answer.id
        told, _ = await ask(ai, "How do I make pancakes with eggs?", **{"cache-control": "no-store"})
        assert told == "bypass"


async def test_a_tenants_answers_are_purged(stack: Stack) -> None:
    async with client(stack) as ai, client(stack, "globex") as other:
        await kept(ai, "What is a railway switch?")
        await kept(other, "What is a railway switch?")
        code, output = await stack.command("cache", "purge", "--tenant", "acme")
        assert code == 0, output
        assert "cached answers deleted" in output
        assert (await ask(ai, "What is a railway switch?"))[0] == "miss"
        assert (await ask(other, "What is a railway switch?"))[0] == "hit"


@pytest.mark.requirement("PRIVACY-1")
async def test_a_question_is_on_the_bus_on_its_way_to_the_preprocessor_and_nowhere_else(stack: Stack) -> None:
    canary = "Where does the Zanzibarian quetzalcoatlus roost?"
    bus = Client()
    await bus.connect(stack.nats.url)
    seen: list[Msg] = []

    async def note(message: Msg) -> None:
        seen.append(message)

    await bus.subscribe("pm.>", cb=note)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    try:
        await bus.flush()
        async with client(stack) as ai:
            await kept(ai, canary)
            assert (await ask(ai, canary.replace("Where does", "Please, where does")))[0] == "semantic"
        ends = "pm.evt.response.completed."
        await eventually(lambda: sum(message.subject.startswith(ends) for message in seen) >= 2)
    finally:
        await bus.close()
    reviews = [message for message in seen if message.subject.endswith("review.v1.semantic-cache")]
    memos = [json.loads(message.data)["memo"] for message in reviews if b'"memo"' in message.data]
    assert memos
    words = [word.encode() for word in ("Zanzibarian", "quetzalcoatlus", "zanzibarian", "roost")]
    documents = [base64.b64decode(memo) for memo in memos]
    documents += [message.data for message in seen if message.subject != stage_subject("preprocessor")]
    assert not [word for word in words for document in documents if word in document]


async def test_without_the_cache_requests_go_on_and_say_so(stack: Stack) -> None:
    async with client(stack) as ai:
        await kept(ai, "Where do trains sleep?")
        stack.services["semantic-cache"][0].kill()
        raw = await ai.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "Where do trains sleep?"}]
        )
        assert raw.headers.get("x-pointsman-level") == "degraded"
        await stack.restart("semantic-cache", 0)
        assert await kept(ai, "Where do trains sleep?")
