"""Agents that call tools, through messages and responses: the gateway predicts what they find cached."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.engine_stack import EngineStack
from pointsman_testing.observer import Observer
from pointsman_testing.real_engine import POOL

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1800),
]

SESSIONS: Final = 60
TURNS: Final = 8
"""A call of a tool follows every second one's answer, and the next one has its result. A model of random weights
answers `{"name": …, "arguments": { \\r\\r\\r…` where a call is forced, so the agent writes the calls."""
AT_ONCE: Final = 4
PREDICTED: Final = 0.98
"""Share of the turns whose cached tokens must be predicted exactly."""
TOKENS: Final = 40
RULES: Final = "You are the signaller of box {0} and work with tools. You say what you did in one sentence. " * 3
WORDS: Final = ("which", "track", "does", "the", "train", "to", "platform", "nine", "take", "today", "10 €", "Zug")
SCHEMA: Final[dict[str, JsonValue]] = {
    "type": "object",
    "properties": {"track": {"type": "string", "description": "Its name."}, "lock": {"type": "boolean"}},
    "required": ["track"],
    "additionalProperties": False,
}
TOOLS: Final = (("set_points", "Sets the points of a track."), ("read_lever", "Says how a lever stands."))
Body = dict[str, Any]


class Turn(NamedTuple):
    """One answered request."""

    request_id: str
    path: str
    number: int
    cached: int
    """Tokens, as the engine says."""


class Session:
    """One run of an agent, in the API of its kind."""

    path: str

    def __init__(self, number: int) -> None:
        self.number = number
        self.history: list[Body] = []
        self._words = random.Random(number)

    def words(self) -> str:
        """A question, or what a tool says."""
        return f"{self.number}: " + " ".join(self._words.choices(WORDS, k=self._words.randint(10, 60)))

    def call(self, turn: int) -> Body:
        """The arguments of a tool."""
        return {"track": f"track {self.number}", "lock": turn % 4 == 0}

    def body(self, turn: int) -> Body:
        """The request of a turn; the history has its message then."""
        raise NotImplementedError

    def take_answer(self, turn: int, answer: Body) -> int:
        """Adds it to the history, with a call after every second one. Returns the cached tokens that it tells of."""
        raise NotImplementedError


class MessagesSession(Session):
    """As Claude Code writes them."""

    path = "/v1/messages"

    def body(self, turn: int) -> Body:
        if turn % 2:
            content: Body = {"type": "tool_result", "tool_use_id": f"toolu_{turn - 1}", "content": self.words()}
        else:
            content = {"type": "text", "text": self.words()}
        self.history.append({"role": "user", "content": [content]})
        return {
            "system": [{"type": "text", "text": RULES.format(self.number % 3)}],
            "messages": self.history,
            "tools": [{"name": name, "description": text, "input_schema": SCHEMA} for name, text in TOOLS],
            "tool_choice": {"type": "auto"},
            "metadata": {"user_id": json.dumps({"session_id": f"session-{self.number}"})},
            "max_tokens": TOKENS,
        }

    def take_answer(self, turn: int, answer: Body) -> int:
        content = list(answer["content"])
        if turn % 2 == 0:
            name = TOOLS[turn % 4 // 2][0]
            content.append({"type": "tool_use", "id": f"toolu_{turn}", "name": name, "input": self.call(turn)})
        self.history.append({"role": "assistant", "content": content})
        return int(answer["usage"].get("cache_read_input_tokens") or 0)


class ResponsesSession(Session):
    """As Codex writes them."""

    path = "/v1/responses"

    def body(self, turn: int) -> Body:
        if turn % 2:
            self.history.append({"type": "function_call_output", "call_id": f"call_{turn - 1}", "output": self.words()})
        else:
            content = [{"type": "input_text", "text": self.words()}]
            self.history.append({"type": "message", "role": "user", "content": content})
        return {
            "instructions": RULES.format(self.number % 3),
            "input": self.history,
            "tools": [
                {"type": "function", "name": name, "description": text, "parameters": SCHEMA} for name, text in TOOLS
            ],
            "tool_choice": "auto",
            "prompt_cache_key": f"session-{self.number}",
            "store": False,
            "max_output_tokens": TOKENS,
        }

    def take_answer(self, turn: int, answer: Body) -> int:
        self.history += answer["output"]
        if turn % 2 == 0:
            name, arguments = TOOLS[turn % 4 // 2][0], json.dumps(self.call(turn))
            self.history.append(
                {"type": "function_call", "call_id": f"call_{turn}", "name": name, "arguments": arguments}
            )
        return int(answer["usage"]["input_tokens_details"]["cached_tokens"])


async def work(door: str, model: str, http: aiohttp.ClientSession, session: Session) -> list[Turn]:
    """All turns of a session."""
    turns: list[Turn] = []
    for number in range(TURNS):
        body = {"model": model, "temperature": 0, **session.body(number)}
        async with http.post(door + session.path, json=body) as answer:
            document = cast("Body", await answer.json())
            assert answer.status == 200, (number, document, body)
            request_id = answer.headers["x-request-id"]
        turns.append(Turn(request_id, session.path, number, session.take_answer(number, document)))
    return turns


async def test_what_a_turn_of_an_agent_finds_cached_is_predicted(
    fleet: EngineStack, seen: Observer, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    await fleet.empty_caches()
    decisions = seen.listen(RequestScheduled, POOL.pool)
    numbers: Iterator[int] = iter(range(SESSIONS))
    turns: list[Turn] = []

    async def some() -> None:
        for number in numbers:
            session = (MessagesSession if number % 2 else ResponsesSession)(number)
            turns.extend(await work(fleet.door, fleet.model, http, session))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await eventually(lambda: len(decisions) >= len(turns), timeout=60)
    believed = {each.request_id: each.cached_tokens for each in decisions}
    off = [
        (turn.path, turn.number, believed[turn.request_id], turn.cached)
        for turn in turns
        if believed[turn.request_id] != turn.cached
    ]
    measured["agents"] = {
        "sessions": SESSIONS,
        "turns": len(turns),
        "predicted exactly": round(1 - len(off) / len(turns), 4),
        "predicted": sum(believed[turn.request_id] for turn in turns),
        "cached": sum(turn.cached for turn in turns),
        "engines used": len({each.endpoints[0] for each in decisions}),
    }
    assert len(off) <= (1 - PREDICTED) * len(turns), off
    assert sum(turn.cached for turn in turns) > 0
