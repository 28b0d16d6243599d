"""A whole answer as the events of a stream says the same; an error ends it."""

import json
from typing import Any

import pytest

from pointsman_apis import named
from pointsman_apis.late_events import as_events
from pointsman_apis.stream_ends import missing_end
from pointsman_apis.streams import DONE

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE = {
    "type": "message",
    "model": "m",
    "content": [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


def events(api: str, status: int, document: dict[str, Any]) -> list[dict[str, Any]]:
    data = as_events(named(api), status, json.dumps(document).encode())
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_choices_become_one_chunk_and_their_usage() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    document = {"object": "chat.completion", "model": "m", "choices": [choice], "usage": {"prompt_tokens": 1}}
    first, last = events("chat.completions", 200, document)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **CALL}]
    assert (last["choices"], last["usage"]) == ([], {"prompt_tokens": 1})
    assert as_events(named("chat.completions"), 200, json.dumps(document).encode()).endswith(DONE)


def test_a_message_becomes_its_blocks() -> None:
    found = events("messages", 200, MESSAGE)
    assert [each["type"] for each in found] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert json.loads(found[5]["delta"]["partial_json"]) == {"a": 1}


@pytest.mark.parametrize("api", ["chat.completions", "completions", "messages", "responses"])
@pytest.mark.parametrize("body", [b'{"error":{"message":"why","code":"it"}}', b"<html>", b""])
def test_an_error_becomes_the_event_by_which_clients_of_the_api_know_it(api: str, body: bytes) -> None:
    data = as_events(named(api), 503, body).decode()
    (line,) = [line for line in data.split("\n") if line.startswith("data: ")]
    document = json.loads(line.removeprefix("data: "))
    assert document["error"]["message"]


TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
OTHER = TEXT.replace(b'"index":0', b'"index":1')


@pytest.mark.parametrize(
    ("api", "end", "broken", "lacks"),
    [
        ("chat.completions", TEXT + STOP + DONE, False, b""),
        ("chat.completions", TEXT + STOP + DONE.rstrip(), True, b""),
        ("chat.completions", TEXT + STOP, False, DONE),
        ("chat.completions", TEXT + STOP, True, DONE),
        ("chat.completions", TEXT, False, None),
        ("chat.completions", TEXT + OTHER + STOP, False, None),
        ("chat.completions", b'data: {"mine":1}\n\n', False, b""),
        ("chat.completions", b'data: {"mine":1}\n\n', True, None),
        ("chat.completions", TEXT.replace(b"x", b"data: [DONE]"), False, None),
        ("responses", b'data: {"type":"response.completed"}\n\n', True, b""),
        ("responses", b'data: {"type":"response.output_text.delta"}\n\n', True, None),
        ("messages", b'data: {"type":"content_block_delta"}\n\n', False, None),
        ("rerank", b"anything", False, b""),
    ],
)
def test_a_stream_is_complete_by_its_mark_or_by_its_reasons(
    api: str, end: bytes, broken: bool, lacks: bytes | None
) -> None:
    assert missing_end(named(api), end, broken=broken) == lacks
