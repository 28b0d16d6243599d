"""Through the gateway comes what the engine itself would have answered."""

import re
from typing import Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_testing.engine_stack import EngineStack

pytestmark = [pytest.mark.fleet, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1200)]

ONE: Final[JsonValue] = [{"role": "user", "content": "Which track does the train to Paris take? 🚂"}]
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
SCHEMA: Final[JsonValue] = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "string", "enum": ["late", "early"]}},
}
CHAT: Final = "/v1/chat/completions"
USAGE: Final[JsonValue] = {"include_usage": True}

REQUESTS: Final[dict[str, tuple[str, dict[str, JsonValue]]]] = {
    "chat": (CHAT, {"messages": ONE, "max_tokens": 12}),
    "chat-streamed": (CHAT, {"messages": ONE, "max_tokens": 12, "stream": True}),
    "chat-streamed-with-usage": (CHAT, {"messages": ONE, "max_tokens": 12, "stream": True, "stream_options": USAGE}),
    "chat-continuous-usage": (
        CHAT,
        {
            "messages": ONE,
            "max_tokens": 6,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "chat-two-choices": (CHAT, {"messages": ONE, "max_tokens": 8, "n": 2, "temperature": 1.0, "seed": 7}),
    "chat-logprobs": (CHAT, {"messages": ONE, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}),
    "chat-tool": (CHAT, {"messages": ONE, "max_tokens": 100, "tools": [TOOL], "tool_choice": "required"}),
    "chat-tool-streamed": (
        CHAT,
        {"messages": ONE, "max_tokens": 100, "tools": [TOOL], "tool_choice": "required", "stream": True},
    ),
    "chat-schema": (CHAT, {"messages": ONE, "max_tokens": 40, "response_format": SCHEMA}),
    "chat-vllm-extras": (
        CHAT,
        {"messages": ONE, "max_tokens": 6, "return_token_ids": True, "prompt_logprobs": 1, "min_tokens": 2},
    ),
    "completion": ("/v1/completions", {"prompt": "Which track?", "max_tokens": 12}),
    "completion-echo-logprobs": ("/v1/completions", {"prompt": "Which?", "max_tokens": 4, "logprobs": 2, "echo": True}),
    "completion-of-ids": ("/v1/completions", {"prompt": [20, 21, 22, 23], "max_tokens": 8}),
    "completion-several-prompts": ("/v1/completions", {"prompt": ["Which?", "Where?"], "max_tokens": 4}),
    "completion-streamed": ("/v1/completions", {"prompt": "Which?", "max_tokens": 8, "stream": True}),
    "responses": ("/v1/responses", {"input": "Which track?", "max_output_tokens": 12}),
    "responses-streamed": ("/v1/responses", {"input": "Which track?", "max_output_tokens": 12, "stream": True}),
    "responses-tools": (
        "/v1/responses",
        {
            "input": "Which track?",
            "max_output_tokens": 100,
            "tools": [{"type": "function", "name": "departure", "parameters": {"type": "object", "properties": {}}}],
            "tool_choice": "required",
        },
    ),
    "messages": ("/v1/messages", {"messages": ONE, "max_tokens": 12, "system": "Be brief."}),
    "messages-streamed": ("/v1/messages", {"messages": ONE, "max_tokens": 12, "stream": True}),
    "embeddings": ("/v1/embeddings", {"input": ["Which track?"]}),
    "prompt-too-long": (CHAT, {"messages": [{"role": "user", "content": "track " * 20000}], "max_tokens": 4}),
}
ATTEMPTS: Final = 12
"""The last event of a busy engine may have all tokens but the first, and no event is between."""

# Members that differ between any two answers of an engine, and the counts of cached prompt tokens.
_CHANGES: Final = re.compile(
    rb'"(?:id|item_id|call_id|created|created_at|cached_tokens|created_cache_tokens|cache_write_tokens'
    rb'|cache_creation_input_tokens|cache_read_input_tokens)"\s*:\s*(?:"[^"]*"|[0-9.]+|null)'
)
_ID: Final = re.compile(rb"(?:chatcmpl|cmpl|resp|msg|fc|call|embd|chatcmpl-tool)[-_][0-9a-f]{8,}")
_TOKENS: Final = re.compile(rb'"(?:content|text|delta|partial_json|arguments)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_SO_FAR: Final = re.compile(rb'"(?:completion_tokens|total_tokens|output_tokens)"\s*:\s*[0-9]+')
_NUMBER: Final = re.compile(rb'"sequence_number"\s*:\s*[0-9]+')


def alike(body: bytes, *, stream: bool) -> bytes:
    """The bytes without what no two answers have in common. Of a stream: its events, of which neighbours that differ in
    their tokens alone are one, and all tokens. An engine puts several tokens into one event when it is busy. The
    gateway's own comments, which keep the connection alive, are left out."""
    body = _ID.sub(b"id", _CHANGES.sub(b'"x":0', body))
    if not stream:
        return body
    events, tokens = [b""], b""
    for event in _NUMBER.sub(b'"x":0', body).split(b"\n\n"):
        if event.startswith(b": "):
            continue
        found = _TOKENS.search(event)
        if found is None:
            events.append(event)
            continue
        tokens += found[1]
        rest = _SO_FAR.sub(b'"x":0', event[: found.start(1)] + event[found.end(1) :])
        if rest != events[-1]:
            events.append(rest)
    return b"\n\n".join((*events, tokens))


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_byte_of_an_answer_is_the_engines(
    fleet: EngineStack, http: aiohttp.ClientSession, name: str
) -> None:
    path, fields = REQUESTS[name]
    body = {"model": fleet.model, **({} if "count" in name or "embed" in name else {"temperature": 0})} | fields
    direct, through = set[tuple[int, str, bytes]](), set[tuple[int, str, bytes]]()
    for _ in range(ATTEMPTS if fields.get("stream") else 1):
        for base, answers in ((fleet.real[0].url, direct), (fleet.door, through)):
            async with http.post(base + path, json=body) as answer:
                stream = answer.content_type == "text/event-stream"
                answers.add((answer.status, answer.content_type, alike(await answer.read(), stream=stream)))
        if direct & through:
            return
    if any(status == 404 and b'"detail"' in body for status, _, body in direct):
        pytest.skip(f"the engine has no {path}")
    assert through == direct
