"""The blocks that engines tell of are those that requests are looked up by: what is believed cached is cached."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.engine_stack import EngineStack
from pointsman_testing.observer import Observer
from pointsman_testing.real_engine import POOL

pytestmark = [pytest.mark.fleet, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1800)]

CONVERSATIONS: Final = 200
TURNS: Final = 3
AT_ONCE: Final = 4
PREDICTED: Final = 0.98
"""Share of the requests whose cached tokens must be predicted exactly."""
REUSED: Final = 0.95
"""Of the tokens that one engine alone would find cached, those that the fleet must find."""
SYSTEM: Final = (
    "You are a signaller and answer in one sentence. " * 4,
    "You plan the timetable of a busy station and name the platform first. " * 5,
    "You are a helpful assistant. " * 8,
)
WORDS: Final = ("which", "track", "does", "the", "train", "to", "platform", "nine", "take", "today")
CHAT: Final = "/v1/chat/completions"


@dataclass
class Turn:
    """One request of a conversation."""

    request_id: str
    prompt: int
    cached: int
    """As the engine said."""


@dataclass
class Conversation:
    """Grows with every answer, as a chat does."""

    number: int
    messages: list[JsonValue] = field(default_factory=list[JsonValue])

    def ask(self, turn: int) -> None:
        words = random.Random(self.number * 100 + turn)
        if not self.messages:
            self.messages.append({"role": "system", "content": SYSTEM[self.number % len(SYSTEM)]})
        question = " ".join(words.choices(WORDS, k=30))
        self.messages.append({"role": "user", "content": f"{self.number}: {question}?"})


async def converse(base: str, model: str, http: aiohttp.ClientSession, turns: list[Turn]) -> None:
    """All conversations, several at once; the turns of one after another."""
    numbers: Iterator[int] = iter(range(CONVERSATIONS))

    async def one() -> None:
        for number in numbers:
            conversation = Conversation(number)
            for turn in range(TURNS):
                conversation.ask(turn)
                body = {"model": model, "messages": conversation.messages, "max_tokens": 8, "temperature": 0}
                async with http.post(base + CHAT, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    said = await answer.json()
                    request_id = answer.headers.get("x-request-id", "")
                usage = said["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                turns.append(Turn(request_id, usage["prompt_tokens"], cached))
                conversation.messages.append(
                    {"role": "assistant", "content": said["choices"][0]["message"]["content"] or ""}
                )

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def test_cached_tokens_are_predicted_and_the_fleet_reuses_what_one_engine_would(
    fleet: EngineStack, seen: Observer, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    decisions = seen.listen(RequestScheduled, POOL.pool)
    await fleet.empty_caches()
    alone: list[Turn] = []
    await converse(fleet.real[0].url, fleet.model, http, alone)
    await fleet.empty_caches()
    decisions.clear()
    turns: list[Turn] = []
    await converse(fleet.door, fleet.model, http, turns)
    await eventually(lambda: len(decisions) >= len(turns), timeout=60)
    believed = {each.request_id: each.cached_tokens for each in decisions}
    chosen = {each.request_id: each.endpoints[0] for each in decisions}
    exact = [turn for turn in turns if believed[turn.request_id] == turn.cached]
    off = [(believed[turn.request_id], turn.cached, turn.prompt) for turn in turns if turn not in exact]
    reuse, possible = sum(turn.cached for turn in turns), sum(turn.cached for turn in alone)
    measured["kv-events"] = {
        "conversations": CONVERSATIONS,
        "requests": len(turns),
        "predicted exactly": round(len(exact) / len(turns), 4),
        "cached tokens": reuse,
        "cached tokens of one engine alone": possible,
        "reuse": round(reuse / possible, 4),
        "engines used": len(set(chosen.values())),
    }
    assert len(exact) >= PREDICTED * len(turns), off
    assert reuse >= REUSED * possible
