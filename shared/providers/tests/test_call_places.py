"""Calls of tools, and signed reasoning, in streams whose services tell less than they should."""

import json
from typing import Any

import pytest

from pointsman_core.config import Provider
from pointsman_providers.kinds import KINDS
from pointsman_testing.provider_messages import ask, aws_message


def _call(index: int | None, identity: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": "now"} if identity else {})}
    told = {"id": identity, "type": "function"} if identity else {}
    return {**({} if index is None else {"index": index}), **told, "function": function}


CALLS: list[tuple[str, list[list[dict[str, Any]]]]] = [
    ("all at 0, whole", [[_call(0, "a", "{}")], [_call(0, "b", '{"x":1}')]]),
    (
        "all at 0, in pieces",
        [[_call(0, "a", "{")], [_call(0, None, "}")], [_call(0, "b", '{"x"')], [_call(0, None, ":1}")]],
    ),
    ("no index", [[_call(None, "a", "{}"), _call(None, "b", '{"x":1}')]]),
    ("no index, in pieces", [[_call(None, "a", "{")], [_call(None, None, "}")], [_call(None, "b", '{"x":1}')]]),
    ("as it should be", [[_call(0, "a", "{"), _call(1, "b", '{"x"')], [_call(1, None, ":1}"), _call(0, None, "}")]]),
    ("the id in every piece", [[_call(0, "a", "{")], [_call(0, "a", "}")], [_call(1, "b", '{"x":1}')]]),
]


@pytest.mark.parametrize(("name", "deltas"), CALLS)
def test_calls_in_a_stream_have_a_place_each(name: str, deltas: list[list[dict[str, Any]]]) -> None:
    read = (
        KINDS["openai"].format(Provider(kind="openai")).translate_request(ask(stream=True)).answer.make_stream_reader()
    )
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"tool_calls": calls}}]} for calls in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    sent = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    told = read.translate_bytes(sent) + read.translate_end()
    found: dict[int, str] = {}
    for line in told.split(b"\n\n"):
        if line.startswith(b"data: {"):
            for call in json.loads(line[6:])["choices"][0]["delta"].get("tool_calls", []):
                found[call["index"]] = found.get(call["index"], "") + call["function"]["arguments"]
    assert found == {0: "{}", 1: '{"x":1}'}, name


@pytest.mark.parametrize("ends", [True, False])
def test_signed_reasoning_is_kept_whether_its_block_ends_or_not(ends: bool) -> None:
    """earendil-works/pi #8314, langchain-ai/langchainjs #11341: the signature comes alone, and no end may follow."""
    provider = Provider(kind="bedrock", region="eu-north-1")
    read = KINDS["bedrock"].format(provider).translate_request(ask(stream=True)).answer.make_stream_reader()

    def reasons(block: int, **delta: str) -> bytes:
        inner: dict[str, Any] = {"contentBlockIndex": block, "delta": {"reasoningContent": delta}}
        return aws_message("contentBlockDelta", inner)

    stop = aws_message("contentBlockStop", {"contentBlockIndex": 0}) if ends else b""
    end = aws_message("messageStop", {"stopReason": "end_turn"}) + aws_message("metadata", {"usage": {}})
    pieces = (reasons(0, text="Hm."), reasons(0, signature="one"), stop, reasons(1, text="So."))
    told = b"".join(map(read.translate_bytes, (*pieces, reasons(1, signature="two"), end))) + read.translate_end()
    found: list[tuple[str, str]] = []
    for line in told.split(b"\n\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                entries: list[dict[str, str]] = choice["delta"].get("reasoning_details", [])
                found += [(entry["text"], entry["signature"]) for entry in entries]
    assert found == [("Hm.", "one"), ("So.", "two")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", [{"x": 1}, '{"x":1}'])
@pytest.mark.parametrize("identity", [None, "", "a"])
def test_calls_have_an_id_and_arguments_that_are_a_text(stream: bool, arguments: object, identity: str | None) -> None:
    answer = KINDS["openai"].format(Provider(kind="openai")).translate_request(ask(stream=stream)).answer
    told = {"index": 0, "id": identity, "type": "function", "function": {"name": "now", "arguments": arguments}}
    if stream:
        more = {"index": 0, "function": {"arguments": ""}}
        chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]} for each in (told, more)]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        read = answer.make_stream_reader()
        sent = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
        first, second, *_ = (read.translate_bytes(sent) + read.translate_end()).split(b"\n\n")
        (call,) = json.loads(first[6:])["choices"][0]["delta"]["tool_calls"]
        assert json.loads(second[6:])["choices"][0]["delta"]["tool_calls"] == [more]
    else:
        document = {"choices": [{"index": 0, "message": {"tool_calls": [told]}, "finish_reason": "tool_calls"}]}
        whole = json.loads(answer.translate_whole(json.dumps(document).encode()))
        (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert call["id"] == (identity or "call_0")
    assert json.loads(call["function"]["arguments"]) == {"x": 1}
