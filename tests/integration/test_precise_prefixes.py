"""A chat, its tokens, an engine's cache, its KV events, and the next decision: the same blocks all the way.

Prompts are sent to an engine directly, past the gateway, so that nothing but its KV events can tell of them.
"""

import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.kv import WorkerKvEvents
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import Observer, observing
from pointsman_testing.stack import POOL, EngineProcess, KvTelling, Stack, StackFactory
from pointsman_testing.tiny_tokenizer import write_tokenizer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

T = TypeVar("T")

BLOCK: Final = 32
ENGINE_BLOCK: Final = 16
ENGINE_BLOCKS: Final = 256
CHAT: Final = "/v1/chat/completions"
PATIENCE_S: Final = 60.0
"""A decision may be made before the scheduler has read what this test has: then another prompt is tried."""
BY_PREFIX: Final[JsonValue] = {"filters": ["healthy", "lora-capable"], "scorers": ["prefix-cache"]}
"""Nothing but prefixes decides: how fast an engine seems to be changes with what else the machine does."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Two engines that tokenize with a chat template and tell what they cache."""
    folder = write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")))
    pool: dict[str, JsonValue] = {
        "models": ["llama-3.1-8b", "sql-lora"],
        "loras": ["sql-lora"],
        "block_tokens": BLOCK,
        "tokenizer": {"path": str(folder)},
    }
    cache = KvTelling(folder, ENGINE_BLOCKS, ENGINE_BLOCK, BLOCK)
    async with stacks.start(
        changes={"pools": {POOL: pool}, "scheduling": {"default": BY_PREFIX}}, cache=cache
    ) as started:
        yield started


class Talk:
    """Sends chats to the gateway or to one engine, and reads the events about them."""

    def __init__(self, stack: Stack, seen: Observer, http: aiohttp.ClientSession) -> None:
        self._stack = stack
        self._http = http
        self._decisions = seen.listen(RequestScheduled, POOL)
        self._told = {e.name: seen.listen(WorkerKvEvents, POOL, e.name) for e in stack.engines}

    async def ask(self, url: str, text: str, **fields: JsonValue) -> tuple[str, dict[str, int]]:
        """Returns the request's id and the usage, in tokens."""
        messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]
        body = {"model": "llama-3.1-8b", "messages": messages, "max_tokens": 2} | fields

        async def once() -> tuple[int, str, str]:
            async with self._http.post(f"{url}{CHAT}", json=body) as answer:
                return answer.status, answer.headers.get("x-request-id", ""), await answer.text()

        status, request_id, document = await answered(once)
        assert status == 200, document
        usage = json.loads(document)["usage"]
        return request_id, {"prompt": usage["prompt_tokens"], "cached": usage["prompt_tokens_details"]["cached_tokens"]}

    async def cache(self, engine: EngineProcess, text: str, op: str = "stored", **fields: JsonValue) -> None:
        """Put a prompt into an engine's cache and wait until the bus was told."""
        before = self._count(engine, op)
        await self.ask(engine.url, text, **fields)
        await eventually(lambda: self._count(engine, op) > before)

    async def decision(self, text: str, **fields: JsonValue) -> tuple[RequestScheduled, dict[str, int]]:
        """The decision about a prompt, and the usage."""
        request_id, usage = await self.ask(self._stack.door, text, **fields)
        found = await eventually(lambda: next((d for d in self._decisions if d.request_id == request_id), None))
        assert found is not None
        return found, usage

    def _count(self, engine: EngineProcess, op: str) -> int:
        return sum(change.op == op for event in self._told[engine.name] for change in event.changes)


@pytest_asyncio.fixture(loop_scope="module")
async def talk(stack: Stack) -> AsyncIterator[Talk]:
    async with observing(stack.nats.url) as seen, aiohttp.ClientSession() as http:
        yield Talk(stack, seen, http)


def prompt(family: str, questions: int = 24) -> str:
    """About 15 tokens a question; families share nothing but the template's beginning."""
    return f"{family} " + "".join(
        f"{family}: which track does train {n} take at the points? " for n in range(questions)
    )


def matched(decision: RequestScheduled) -> dict[str, int]:
    columns = decision.runs[0].candidates
    return dict(zip(columns.workers, columns.matched_tokens, strict=True))


async def until(good: Callable[[T], bool], attempt: Callable[[int], Awaitable[T]]) -> T:
    """The first attempt that is good, or the last one before patience ends."""
    numbers = itertools.count()
    deadline = time.monotonic() + PATIENCE_S
    while not good(found := await attempt(next(numbers))) and time.monotonic() < deadline:
        pass
    return found


Found = tuple[RequestScheduled, dict[str, int]]


@pytest.mark.requirement("S4-6", "S4-12", "S1-37")
async def test_a_chat_goes_to_the_engine_that_says_it_has_the_prefix(stack: Stack, talk: Talk) -> None:
    holder, other = stack.engines[1], stack.engines[0]

    async def cached_there_and_asked_here(number: int) -> Found:
        text = prompt(f"alpha {number}")
        await talk.cache(holder, text)
        return await talk.decision(f"{text} And the last one?")

    decision, usage = await until(
        lambda found: found[0].cached_tokens > 5 * BLOCK and found[0].level == "full", cached_there_and_asked_here
    )
    assert decision.prefix == "precise"
    assert decision.level == "full"
    assert decision.endpoints[0] == holder.name
    assert matched(decision)[other.name] < 2 * BLOCK  # the template's beginning
    assert decision.prompt_tokens == usage["prompt"]
    # The engine's blocks are smaller than the pool's.
    assert 0 <= usage["cached"] - decision.cached_tokens < BLOCK
    assert "tokenized" in [report.note for report in decision.trail]


async def test_an_evicted_prefix_is_no_hit_any_more(stack: Stack, talk: Talk) -> None:
    holder = stack.engines[0]

    async def evicted_there_and_asked_here(number: int) -> Found:
        text = prompt(f"beta {number}")
        await talk.cache(holder, text)
        # Three prompts that fill the cache together.
        for filler in range(3):
            await talk.cache(holder, prompt(f"filler {number} {filler}", 110), "removed" if filler == 2 else "stored")
        return await talk.decision(text)

    decision, usage = await until(
        lambda found: found[0].prefix == "precise" and matched(found[0])[holder.name] < 2 * BLOCK,
        evicted_there_and_asked_here,
    )
    assert decision.prefix == "precise"
    assert matched(decision)[holder.name] < 2 * BLOCK
    assert usage["cached"] < 2 * BLOCK


async def test_salts_and_adapters_are_distinguished(stack: Stack, talk: Talk) -> None:
    holder = stack.engines[1]

    async def asked_with(number: int) -> tuple[RequestScheduled, ...]:
        text = prompt(f"gamma {number}")
        await talk.cache(holder, text, cache_salt="pepper")
        asked: tuple[dict[str, JsonValue], ...] = (
            {"cache_salt": f"of another {number}"},
            {"cache_salt": "pepper", "model": "sql-lora"},
            {"cache_salt": "pepper"},
        )
        return tuple([(await talk.decision(text, **fields))[0] for fields in asked])

    other, adapter, same = await until(lambda found: found[-1].cached_tokens > 5 * BLOCK, asked_with)
    assert (same.prefix, same.endpoints[0]) == ("precise", holder.name)
    assert set(matched(other).values()) == {0}
    assert matched(adapter)[holder.name] < 2 * BLOCK
