"""Conversations whose engines publish no KV events: the answers' blocks are known by the observers of answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import JsonValue

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.observer import Observer, observing
from pointsman_testing.stack import POOL, KvTelling, Stack, StackFactory
from pointsman_testing.tiny_tokenizer import CHATML, write_tokenizer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

BLOCK: Final = 16
TURNS: Final = 10
CONVERSATIONS: Final = 4
EXACT: Final = 0.98
MODEL: Final = "llama-3.1-8b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")), CHATML)
    pool: JsonValue = {"models": [MODEL], "block_tokens": BLOCK, "tokenizer": {"path": str(folder)}}
    async with stacks.start(
        changes={"pools": {POOL: pool}, "processors": {"response": ["answer-blocks"]}},
        cache=KvTelling(folder, 8192, BLOCK, BLOCK, tells=False),
        bundled=True,
    ) as started:
        yield started


class Talk:
    """One conversation through the gateway."""

    def __init__(self, client: AsyncOpenAI, seen: Observer, number: int, *, stream: bool) -> None:
        self._client = client
        self._decisions = seen.listen(RequestScheduled, POOL)
        self._messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": f"Signal box {number}. " * 5}]
        self._stream = stream

    async def take_turn(self, turn: int) -> tuple[int, int]:
        """The next question and its answer. Returns how much of the prompt the gateway believed to be cached, and how
        much was, in tokens."""
        self._messages.append({"role": "user", "content": f"Question {turn}: which track does train {turn} take?"})
        if self._stream:
            request_id, text, cached = await self._streamed()
        else:
            raw = await self._client.chat.completions.with_raw_response.create(
                model=MODEL, messages=self._messages, max_tokens=60
            )
            answer = raw.parse()
            extra = answer.model_extra or {}
            assert extra.get("prompt_token_ids") is None
            request_id, text = raw.headers["x-request-id"], answer.choices[0].message.content or ""
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        self._messages.append({"role": "assistant", "content": text})
        found = await eventually(lambda: next((d for d in self._decisions if d.request_id == request_id), None))
        assert found is not None
        return found.cached_tokens, cached

    async def _streamed(self) -> tuple[str, str, int]:
        raw = await self._client.chat.completions.with_raw_response.create(
            model=MODEL, messages=self._messages, max_tokens=60, stream=True, stream_options={"include_usage": True}
        )
        text, cached = "", 0
        async for chunk in raw.parse():
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            told = [choice.model_extra for choice in chunk.choices]
            assert not any(extra and extra.get("token_ids") for extra in told)
            if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
        return raw.headers["x-request-id"], text, cached


@pytest.mark.requirement("OBSERVE-1")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_next_turn_of_a_conversation_is_known_to_be_cached_up_to_its_last_block(
    stack: Stack, stream: bool
) -> None:
    pairs: list[tuple[int, int]] = []
    async with (
        observing(stack.nats.url) as seen,
        AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="-", max_retries=5) as client,
    ):
        for number in range(CONVERSATIONS):
            talk = Talk(client, seen, 2 * number + stream, stream=stream)
            turns = [await talk.take_turn(turn) for turn in range(TURNS)]
            pairs += turns[1:]
    near = [abs(predicted - actual) <= BLOCK for predicted, actual in pairs]
    assert sum(near) >= EXACT * len(near), pairs
    # More than the prompts alone: each answer has several blocks.
    assert sum(actual for _, actual in pairs) > 3 * BLOCK * len(pairs)
