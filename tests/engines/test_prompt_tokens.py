"""The prompt tokens that a decision counts are those that the engine bills."""

import asyncio
import random
from typing import Any, Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.engine_stack import EngineStack
from pointsman_testing.observer import Observer
from pointsman_testing.real_engine import POOL

pytestmark = [pytest.mark.fleet, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1200)]

PROMPTS: Final = 500
AT_ONCE: Final = 8
SCRIPTS: Final = (
    "the train takes the left track",
    "der Zug fährt über die Weiche, größer als 10 €",
    "поезд идёт по левому пути",
    "列车走左边的轨道",
    "القطار يأخذ المسار الأيسر",
    "🚂🛤️👩‍🔧🇫🇷",
    "def switch(track: int) -> None:\n\treturn points[track]  # ok\n",
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"}',
    "   \n\n\t  ",
    "<|eot_id|> <|im_start|>user",
    "a\u0301e\u0308 \ufb01 \u200b\u00a0",
)
PART: Final[JsonValue] = {"type": "text", "text": "part of a message"}


def text(random: random.Random) -> str:
    """A few pieces of any script, in any case, with any spaces."""
    pieces = random.choices(SCRIPTS, k=random.randint(1, 12))
    return random.choice(("", " ", "\n")).join(
        piece.upper() if random.random() < 0.1 else piece[: random.randint(1, len(piece))] for piece in pieces
    )


def tool(random: random.Random, number: int) -> JsonValue:
    """A tool with some parameters."""
    properties: dict[str, Any] = {
        f"p{index}": {"type": random.choice(("string", "integer", "boolean")), "description": text(random)}
        for index in range(random.randint(0, 3))
    }
    function: dict[str, Any] = {
        "name": f"tool_{number}",
        "parameters": {"type": "object", "properties": properties},
    }
    if random.random() < 0.7:
        function["description"] = text(random)
    if random.random() < 0.3:
        function["strict"] = True
    return {"type": "function", "function": function}


def chat(random: random.Random) -> dict[str, Any]:
    """A conversation, some with system messages, tools, parts, calls, or arguments of the template."""
    messages: list[Any] = []
    if random.random() < 0.4:
        messages.append({"role": "system", "content": text(random)})
    for _ in range(random.randint(0, 3)):
        messages += [{"role": "user", "content": text(random)}, {"role": "assistant", "content": text(random)}]
    body: dict[str, Any] = {}
    if random.random() < 0.3:
        body["tools"] = [tool(random, number) for number in range(random.randint(1, 3))]
        if random.random() < 0.5:
            call: JsonValue = {
                "id": "call_1",
                "type": "function",
                "function": {"name": "tool_0", "arguments": '{"p0": "left",  "p1": 3}'},
            }
            messages += [
                {"role": "user", "content": text(random)},
                {"role": "assistant", "content": random.choice((None, "")), "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": text(random)},
            ]
    last: JsonValue = [{"type": "text", "text": text(random)}, PART] if random.random() < 0.2 else text(random)
    messages.append({"role": "user", "content": last})
    if random.random() < 0.1:
        body["add_generation_prompt"] = False
    if random.random() < 0.1:
        body["documents"] = [{"title": "timetable", "text": text(random)}]
    return {"messages": messages} | body


def request(random: random.Random) -> tuple[str, dict[str, Any]]:
    """Mostly chats; the rest completions, of text or of token ids."""
    if random.random() < 0.8:
        return "/v1/chat/completions", chat(random)
    if random.random() < 0.3:
        return "/v1/completions", {"prompt": [random.randint(20, 400) for _ in range(random.randint(1, 60))]}
    body: dict[str, Any] = {"prompt": text(random)}
    if random.random() < 0.2:
        body["add_special_tokens"] = False
    return "/v1/completions", body


async def test_prompt_tokens_equal_the_engines_for_generated_prompts(
    fleet: EngineStack, seen: Observer, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    decisions = seen.listen(RequestScheduled, POOL.pool)
    numbers, bodies = iter(range(PROMPTS)), dict[str, tuple[str, dict[str, Any]]]()
    billed: dict[str, int] = {}
    refused: list[tuple[int, str]] = []

    async def ask() -> None:
        for number in numbers:
            path, body = request(random.Random(number))
            sent = {"model": fleet.model, "max_tokens": 1, "temperature": 0} | body
            async with http.post(fleet.door + path, json=sent) as answer:
                if answer.status != 200:
                    refused.append((number, await answer.text()))
                    continue
                name = answer.headers["x-request-id"]
                billed[name] = (await answer.json())["usage"]["prompt_tokens"]
                bodies[name] = path, body

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    assert refused == []
    await eventually(lambda: len({d.request_id for d in decisions} & set(billed)) == len(billed))
    counted = {each.request_id: each.prompt_tokens for each in decisions}
    wrong = [(bodies[name], counted[name], tokens) for name, tokens in billed.items() if counted[name] != tokens]
    measured["prompt-tokens"] = {"prompts": len(billed), "equal": len(billed) - len(wrong)}
    assert wrong == []
