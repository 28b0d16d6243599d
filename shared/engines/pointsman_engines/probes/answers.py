"""Tests the answers of an engine in each API."""

import json
import time
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from pointsman_engines.probes.probed_engine import CHAT, Different, FeatureMissing, ProbedEngine, expect, member

_FEW: Final = 8
_TOOL: Final[JsonValue] = {
    "type": "function",
    "function": {
        "name": "departure",
        "description": "When a train leaves.",
        "parameters": {
            "type": "object",
            "properties": {"platform": {"type": "string", "enum": ["north", "south"]}},
            "required": ["platform"],
            "additionalProperties": False,
        },
    },
}
_NAMED: Final[JsonValue] = {"type": "function", "function": {"name": "departure"}}
# A short one: a model that knows nothing puts spaces between the members of an object until it is stopped.
_SCHEMA: Final[JsonValue] = {"type": "string", "enum": ["late", "early"]}
_USAGE: Final[JsonValue] = {"include_usage": True}
_ONE: Final[list[JsonValue]] = [{"role": "user", "content": "Which track?"}]


async def chat(engine: ProbedEngine) -> str:
    """An answer with usage."""
    answer = (await engine.post_request(CHAT, {"messages": _ONE, "max_tokens": _FEW})).read_json()
    expect(answer, str, "choices", 0, "message", "content")
    expect(answer, str, "choices", 0, "finish_reason")
    return _usage(answer, "usage", "prompt_tokens", "completion_tokens")


async def chat_stream(engine: ProbedEngine) -> str:
    """Pieces, and usage in the last event."""
    body: dict[str, JsonValue] = {"messages": _ONE, "max_tokens": _FEW, "stream": True}
    events = (await engine.post_request(CHAT, body | {"stream_options": _USAGE})).read_events()
    if not any(isinstance(member(event, "choices", 0, "delta", "content"), str) for event in events):
        raise Different("no piece of text in any event")
    return _usage(events[-1], "usage", "prompt_tokens", "completion_tokens")


async def chat_choices(engine: ProbedEngine) -> str:
    """As many choices as were asked for."""
    answer = (
        await engine.post_request(CHAT, {"messages": _ONE, "max_tokens": 4, "n": 2, "temperature": 1.0})
    ).read_json()
    choices = expect(answer, list, "choices")
    if not isinstance(choices, list) or len(choices) != 2:
        raise FeatureMissing("one choice where two were asked for")
    return ""


async def chat_logprobs(engine: ProbedEngine) -> str:
    """A log probability for each token."""
    body: dict[str, JsonValue] = {"messages": _ONE, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    answer = (await engine.post_request(CHAT, body)).read_json()
    if member(answer, "choices", 0, "logprobs") is None:
        raise FeatureMissing("none in the answer")
    expect(answer, float, "choices", 0, "logprobs", "content", 0, "logprob")
    return ""


async def chat_json(engine: ProbedEngine) -> str:
    """An answer that follows a schema."""
    form: JsonValue = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA, "strict": True}}
    answer = (
        await engine.post_request(CHAT, {"messages": _ONE, "max_tokens": 200, "response_format": form})
    ).read_json()
    if _parsed(expect(answer, str, "choices", 0, "message", "content")) not in ("late", "early"):
        raise Different("the answer doesn't follow the schema")
    return ""


async def chat_tools(engine: ProbedEngine) -> str:
    """A call of the function that was named, with arguments that are JSON."""
    body: dict[str, JsonValue] = {"messages": _ONE, "max_tokens": 200, "tools": [_TOOL], "tool_choice": _NAMED}
    answer = (await engine.post_request(CHAT, body)).read_json()
    if not member(answer, "choices", 0, "message", "tool_calls"):
        raise FeatureMissing("no call in the answer")
    call = ("choices", 0, "message", "tool_calls", 0, "function")
    ended = member(answer, "choices", 0, "finish_reason")
    arguments = expect(answer, str, *call, "arguments")
    if ended != "length":  # a model that knows nothing may write spaces until it is stopped
        _parsed(arguments)
    if member(answer, *call, "name") != "departure":
        raise Different(f"calls {member(answer, *call, 'name')}")
    return f"ends with {ended}"


async def chat_tools_stream(engine: ProbedEngine) -> str:
    body: dict[str, JsonValue] = {"messages": _ONE, "max_tokens": 200, "tools": [_TOOL], "tool_choice": _NAMED}
    events = (await engine.post_request(CHAT, body | {"stream": True})).read_events()
    pieces = [member(event, "choices", 0, "delta", "tool_calls", 0, "function", "arguments") for event in events]
    arguments = "".join(piece for piece in pieces if isinstance(piece, str))
    if not arguments:
        raise FeatureMissing("no call in the stream")
    if not any(member(event, "choices", 0, "finish_reason") == "length" for event in events):
        _parsed(arguments)
    return ""


async def chat_cached(engine: ProbedEngine) -> str:
    """The number of prompt tokens that came from the cache."""
    text = f"Train {time.time_ns()} stands at the signal. " + "Which track does it take at the points? " * 20
    body: dict[str, JsonValue] = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    where = ("usage", "prompt_tokens_details", "cached_tokens")
    await engine.post_request(CHAT, body)
    second = (await engine.post_request(CHAT, body)).read_json()
    cached = member(second, *where)
    if not isinstance(cached, int):
        raise FeatureMissing("no prompt_tokens_details.cached_tokens")
    if cached == 0:
        raise Different("0 for a prompt that came twice")
    return f"{cached} of {member(second, 'usage', 'prompt_tokens')}"


async def completions(engine: ProbedEngine) -> str:
    """An answer with usage."""
    answer = (await engine.post_request("/v1/completions", {"prompt": "Which track?", "max_tokens": _FEW})).read_json()
    expect(answer, str, "choices", 0, "text")
    return _usage(answer, "usage", "prompt_tokens", "completion_tokens")


async def completions_stream(engine: ProbedEngine) -> str:
    """Pieces, and usage in the last event."""
    body: dict[str, JsonValue] = {"prompt": "Which track?", "max_tokens": _FEW, "stream": True}
    events = (await engine.post_request("/v1/completions", body | {"stream_options": _USAGE})).read_events()
    if not any(isinstance(member(event, "choices", 0, "text"), str) for event in events):
        raise Different("no piece of text in any event")
    return _usage(events[-1], "usage", "prompt_tokens", "completion_tokens")


async def completions_ids(engine: ProbedEngine) -> str:
    """A prompt that is token ids already."""
    ids: list[JsonValue] = [20, 21, 22, 23]
    answer = (await engine.post_request("/v1/completions", {"prompt": ids, "max_tokens": 2})).read_json()
    counted = expect(answer, int, "usage", "prompt_tokens")
    if counted != len(ids):
        raise Different(f"{counted} prompt tokens for {len(ids)} ids")
    return ""


async def responses(engine: ProbedEngine) -> str:
    """An answer with usage."""
    answer = (
        await engine.post_request("/v1/responses", {"input": "Which track?", "max_output_tokens": _FEW})
    ).read_json()
    expect(answer, list, "output")
    expect(answer, str, "status")
    return _usage(answer, "usage", "input_tokens", "output_tokens")


async def responses_stream(engine: ProbedEngine) -> str:
    """Events that end with the whole response."""
    body: dict[str, JsonValue] = {"input": "Which track?", "max_output_tokens": _FEW, "stream": True}
    events = (await engine.post_request("/v1/responses", body)).read_events()
    _types(events, ("response.created", "response.output_text.delta", "response.completed"))
    return _usage(member(events[-1], "response"), "usage", "input_tokens", "output_tokens")


async def messages(engine: ProbedEngine) -> str:
    """An answer with usage."""
    answer = (await engine.post_request("/v1/messages", {"messages": _ONE, "max_tokens": _FEW})).read_json()
    expect(answer, str, "content", 0, "text")
    expect(answer, str, "stop_reason")
    return _usage(answer, "usage", "input_tokens", "output_tokens")


async def messages_stream(engine: ProbedEngine) -> str:
    """Events that end with usage."""
    body: dict[str, JsonValue] = {"messages": _ONE, "max_tokens": _FEW, "stream": True}
    events = (await engine.post_request("/v1/messages", body)).read_events()
    _types(events, ("message_start", "content_block_delta", "message_delta", "message_stop"))
    last = next(event for event in reversed(events) if member(event, "type") == "message_delta")
    expect(last, int, "usage", "output_tokens")
    return ""


async def messages_count(engine: ProbedEngine) -> str:
    """The number of tokens of a prompt."""
    answer = (await engine.post_request("/v1/messages/count_tokens", {"messages": _ONE})).read_json()
    return f"{expect(answer, int, 'input_tokens')} tokens"


async def embeddings(engine: ProbedEngine) -> str:
    """A vector of numbers."""
    answer = (await engine.post_request("/v1/embeddings", {"input": "Which track?"})).read_json()
    if member(answer, "error") is not None:
        raise FeatureMissing(f"HTTP 200 with an error: {member(answer, 'error', 'message')}")
    vector = expect(answer, list, "data", 0, "embedding")
    expect(answer, int, "usage", "prompt_tokens")
    return f"{len(vector) if isinstance(vector, list) else 0} numbers"


async def error_request(engine: ProbedEngine) -> str:
    """A request that can't be served gets 400 and a reason."""
    answer = await engine.post_refused(CHAT, {"messages": _ONE, "max_tokens": 4, "temperature": -3})
    if answer.status not in (400, 422):
        raise Different(f"HTTP {answer.status}")
    expect(answer.read_json(), str, "error", "message")
    return f"HTTP {answer.status}"


async def error_model(engine: ProbedEngine) -> str:
    """A model that isn't served gets 404 and a reason."""
    answer = await engine.post_refused(CHAT, {"model": "no-such-model", "messages": _ONE, "max_tokens": 4})
    expect(answer.read_json(), str, "error", "message")
    if answer.status != 404:
        raise Different(f"HTTP {answer.status}")
    return ""


def _usage(answer: JsonValue, name: str, prompt: str, completion: str) -> str:
    """Both counts, above 0."""
    counts = expect(answer, int, name, prompt), expect(answer, int, name, completion)
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise Different("usage counts no tokens")
    return f"{counts[0]} + {counts[1]} tokens"


def _types(events: Sequence[JsonValue], wanted: Sequence[str]) -> None:
    found = [member(event, "type") for event in events]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise Different(f"no event {', '.join(missing)}")


def _parsed(text: JsonValue) -> object:
    try:
        return json.loads(str(text))
    except ValueError:
        raise Different("the answer is no JSON") from None
