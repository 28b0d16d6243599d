"""The simulated engine answers in the shape in which the real one did.

`recorded/` holds the shapes of a real engine's answers, written by `make test-engines`: no text, only which members are
there and of which type, and which events come in which order.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_engines.probes.probed_engine import ProbedEngine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

RECORDED: Final = Path(__file__).parent / "recorded/vllm-0.32.0.json"
CHAT: Final = "/v1/chat/completions"
ASK: Final[JsonValue] = [{"role": "user", "content": "Which track does the train take?"}]
TOOL: Final[JsonValue] = {
    "type": "function",
    "function": {
        "name": "departure",
        "parameters": {
            "type": "object",
            "properties": {"platform": {"type": "string", "enum": ["north", "south"]}},
            "required": ["platform"],
        },
    },
}
NAMED: Final[JsonValue] = {"type": "function", "function": {"name": "departure"}}
SCHEMA: Final[JsonValue] = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "string", "enum": ["late", "early"]}},
}
STREAM: Final[dict[str, JsonValue]] = {"stream": True}
USAGE: Final[dict[str, JsonValue]] = {"stream": True, "stream_options": {"include_usage": True}}

REQUESTS: Final[dict[str, tuple[str, dict[str, JsonValue]]]] = {
    "chat": (CHAT, {"messages": ASK, "max_tokens": 6}),
    "chat, streamed": (CHAT, {"messages": ASK, "max_tokens": 6} | USAGE),
    "chat, logprobs": (CHAT, {"messages": ASK, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}),
    "chat, schema": (CHAT, {"messages": ASK, "max_tokens": 60, "response_format": SCHEMA}),
    "chat, tool required": (CHAT, {"messages": ASK, "max_tokens": 200, "tools": [TOOL], "tool_choice": "required"}),
    "chat, tool named": (CHAT, {"messages": ASK, "max_tokens": 200, "tools": [TOOL], "tool_choice": NAMED}),
    "completions": ("/v1/completions", {"prompt": "Which track?", "max_tokens": 6}),
    "completions, streamed": ("/v1/completions", {"prompt": "Which track?", "max_tokens": 6} | USAGE),
    "responses": ("/v1/responses", {"input": "Which track?", "max_output_tokens": 6}),
    "responses, streamed": ("/v1/responses", {"input": "Which track?", "max_output_tokens": 6} | STREAM),
    "messages": ("/v1/messages", {"messages": ASK, "max_tokens": 6}),
    "messages, streamed": ("/v1/messages", {"messages": ASK, "max_tokens": 6} | STREAM),
    "messages, counted": ("/v1/messages/count_tokens", {"messages": ASK}),
    "unknown model": (CHAT, {"model": "no-such-model", "messages": ASK, "max_tokens": 6}),
    "unknown model, messages": ("/v1/messages", {"model": "no-such-model", "messages": ASK, "max_tokens": 6}),
    "bad request": (CHAT, {"messages": ASK, "temperature": -3}),
    "bad request, messages": ("/v1/messages", {"messages": ASK}),
}
WORTH: Final = ("finish_reason", "stop_reason", "status", "object", "type", "role")
"""Members whose text is a part of the shape."""


def shape(value: JsonValue, name: str = "") -> JsonValue:
    """Members by their types; of a list its first element."""
    if isinstance(value, dict):
        return {key: shape(each, key) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0], name)] if value else []
    if isinstance(value, str) and name in WORTH:
        return f"={value}"
    return type(value).__name__


async def answered(engine: ProbedEngine, path: str, fields: dict[str, JsonValue]) -> JsonValue:
    """Status and shape of the answer; of a stream each event once where several of one shape follow each other."""
    body: dict[str, JsonValue] = {"model": engine.model}
    if "count" not in path:
        body["temperature"] = 0
    async with engine.http.post(
        engine.url + path, json=body | fields, timeout=aiohttp.ClientTimeout(total=120)
    ) as answer:
        text = await answer.text()
        if answer.content_type != "text/event-stream":
            return {"status": answer.status, "body": shape(json.loads(text))}
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    events = [shape(json.loads(each)) for each in data]
    return {"status": answer.status, "events": [event for event, _ in groupby(events)]}


def differences(real: JsonValue, simulated: JsonValue, where: str = "") -> list[str]:
    """The members that only one of the answers has. A member that is null at the real engine may be missing."""
    if isinstance(real, dict) and isinstance(simulated, dict):
        found = [f"{where}.{key}: only simulated" for key in simulated.keys() - real.keys()]
        for key, each in real.items():
            if key in simulated:
                found += differences(each, simulated[key], f"{where}.{key}")
            elif each not in ("NoneType", []):
                found.append(f"{where}.{key}: only real")
        return sorted(found)
    if isinstance(real, list) and isinstance(simulated, list):
        if len(real) != len(simulated):
            return [f"{where}: {len(real)} of them are real, {len(simulated)} simulated"]
        return [
            each
            for index, (one, two) in enumerate(zip(real, simulated, strict=True))
            for each in differences(one, two, f"{where}[{index}]")
        ]
    return [] if real == simulated else [f"{where}: real {real}, simulated {simulated}"]


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_answer_has_the_shape_that_the_real_engine_gave_it(
    request: pytest.FixtureRequest, engine: ProbedEngine, name: str
) -> None:
    path, fields = REQUESTS[name]
    found = await answered(engine, path, fields)
    recorded: dict[str, JsonValue] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if request.config.getoption("--engine-record", default=False):
        recorded[name] = found
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
        return
    assert differences(recorded[name], found) == []
