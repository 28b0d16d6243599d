"""Conversations before real engines whose KV events aren't heard: the gateway knows the blocks of their answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, cast

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import Processes, eventually
from pointsman_testing.engine_stack import EngineStack, gateway_before
from pointsman_testing.observer import Observer, observing
from pointsman_testing.real_engine import BLOCK, MODEL, POOL, RealEngine

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(2400),
]

TURNS: Final = 10
CONVERSATIONS: Final = 10
"""Of each kind."""
TOKENS: Final = 70
EXACT: Final = 0.98
Body = dict[str, JsonValue]


class QuietEngine(RealEngine):
    """Its agent doesn't hear its KV events."""

    def start_agent(self, env: Mapping[str, str]) -> None:
        self._kv = ()
        super().start_agent(env)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(servers: list[RealEngine], model: Path, processes: Processes) -> AsyncIterator[EngineStack]:
    """A gateway of its own before the engines of the suite."""
    folder = model.parent / "quiet"
    folder.mkdir()
    engines = [QuietEngine(each.name, processes, folder, url=each.url) for each in servers]
    await asyncio.gather(*(each.start() for each in engines))
    changes: dict[str, JsonValue] = {"processors": {"response": ["answer-blocks"]}}
    async with gateway_before(engines, MODEL, model, processes, folder, changes) as stack:
        yield stack


class Talk:
    """One conversation: chats in which the client repeats the texts, or prompts of token ids that it goes on from."""

    def __init__(self, door: str, http: aiohttp.ClientSession, seen: Observer, number: int, *, chat: bool) -> None:
        self._url = f"{door}/v1/{'chat/' if chat else ''}completions"
        self._http = http
        self._decisions = seen.listen(RequestScheduled, POOL.pool)
        self._number = number
        self._messages: list[JsonValue] | None = [] if chat else None
        self._ids: list[JsonValue] = [100 + number, *range(40, 90)]

    async def take_turn(self, turn: int) -> tuple[int, int]:
        """Tokens that the gateway believed to be cached, and that were."""
        body: Body = {"model": MODEL, "max_tokens": TOKENS, "temperature": 1, "seed": self._number, "ignore_eos": True}
        if self._messages is not None:
            text = f"Signal box {self._number}, question {turn}: which track does the train take at the points?"
            self._messages.append({"role": "user", "content": text})
            body["messages"] = self._messages
        else:
            self._ids += [50 + turn, 51, 52, 53]
            body |= {"prompt": self._ids, "return_token_ids": True}
        async with self._http.post(self._url, json=body) as answer:
            document = cast("dict[str, JsonValue]", await answer.json())
            assert answer.status == 200, document
            request_id = answer.headers["x-request-id"]
        choice = cast("list[dict[str, JsonValue]]", document["choices"])[0]
        if self._messages is not None:
            assert choice.get("token_ids") is None
            # A model of random weights writes any byte, and the gateway refuses this one.
            said = cast("str", cast("Body", choice["message"])["content"] or "").replace("\0", "")
            self._messages.append({"role": "assistant", "content": said})
        else:
            self._ids += cast("list[JsonValue]", choice["token_ids"])
        found = await eventually(lambda: next((d for d in self._decisions if d.request_id == request_id), None))
        assert found is not None
        details = cast("Body", cast("Body", document["usage"])["prompt_tokens_details"] or {})
        return found.cached_tokens, cast("int", details.get("cached_tokens") or 0)


@pytest.mark.requirement("OBSERVE-1")
async def test_without_kv_events_the_gateway_knows_what_each_turn_finds_cached(
    gateway: EngineStack, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    async with observing(gateway.nats.url) as seen:
        talks = [
            Talk(gateway.door, http, seen, number, chat=chat)
            for chat in (True, False)
            for number in range(CONVERSATIONS)
        ]
        turns = [await asyncio.gather(*(talk.take_turn(turn) for talk in talks[::2])) for turn in range(TURNS)]
        turns += [await asyncio.gather(*(talk.take_turn(turn) for talk in talks[1::2])) for turn in range(TURNS)]
    pairs = [pair for number, turn in enumerate(turns) if number % TURNS for pair in turn]
    near = sum(abs(predicted - actual) <= BLOCK for predicted, actual in pairs) / len(pairs)
    measured["conversations"] = {
        "turns": len(pairs),
        "within one block": round(near, 4),
        "predicted": sum(predicted for predicted, _ in pairs),
        "cached": sum(actual for _, actual in pairs),
    }
    assert near >= EXACT, pairs
    assert sum(actual for _, actual in pairs) > 5 * BLOCK * len(pairs)
