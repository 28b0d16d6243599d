"""One member of an answer, or of an event, may be anything: it is read as far as it can be, or is no answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_core.config import Provider
from pointsman_providers.errors import BrokenAnswer, answered_error, explained_answer
from pointsman_providers.kinds import KINDS
from pointsman_providers.limits import limits
from pointsman_testing.provider_messages import ask, aws_message

WRONG: list[JsonValue] = [None, 1, -1, 1.5, True, "x", "", [], {}, [None], {"a": None}]
USAGE: JsonValue = {"prompt_tokens": 1, "completion_tokens": 1}
CALL: JsonValue = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
EVENTS: dict[str, list[JsonValue]] = {
    "openai": [
        {"choices": [{"index": 0, "delta": {"content": "Hi", "tool_calls": [CALL]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ],
    "bedrock": [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t", "name": "f"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": "{}"}}}},
        {"messageStop": {"stopReason": "tool_use"}},
        {"metadata": {"usage": {"inputTokens": 5, "outputTokens": 3}}},
    ],
}
DOCUMENTS: dict[str, JsonValue] = {
    "openai": {"choices": [{"index": 0, "message": {"tool_calls": [CALL]}, "finish_reason": "stop"}], "usage": USAGE},
    "anthropic": {"content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}], "stop_reason": "tool_use"},
    "bedrock": {
        "output": {"message": {"content": [{"text": "Hi"}, {"toolUse": {"name": "f", "toolUseId": "t"}}]}},
        "stopReason": "end_turn",
    },
}
ERROR: JsonValue = {
    "error": {"message": "m", "type": "t", "code": "c", "details": [{"reason": "R", "retryDelay": "3s"}]},
    "detail": [{"loc": ["body", "n"], "msg": "Bad n."}],
}


@st.composite
def changed(draw: st.DrawFn, value: JsonValue) -> JsonValue:
    """The value with something else at one place."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        name = draw(st.sampled_from(sorted(value)))
        return {**value, name: draw(changed(value[name]))}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(changed(value[place])), *value[place + 1 :]]
    return draw(st.sampled_from(WRONG))


def _event(kind: str, document: JsonValue) -> bytes:
    if kind != "bedrock":
        return b"data: " + json.dumps(document).encode() + b"\n\n"
    name, payload = next(iter(document.items())) if isinstance(document, dict) and document else ("other", document)
    return aws_message(name, json.dumps(payload).encode())


@pytest.mark.parametrize("kind", EVENTS)
@given(data=st.data())
def test_a_wrong_member_of_an_answer_is_no_error_of_the_gateway(kind: str, data: st.DataObject) -> None:
    format_ = KINDS[kind].format(Provider(kind=kind, region="eu-north-1"))
    try:
        if data.draw(st.booleans()):
            reader = format_.translate_request(ask(stream=True)).answer.make_stream_reader()
            events = data.draw(changed(EVENTS[kind]))
            for event in events if isinstance(events, list) else ():
                reader.translate_bytes(_event(kind, event))
            reader.translate_end()
        else:
            document = json.dumps(data.draw(changed(DOCUMENTS[kind]))).encode()
            format_.translate_request(ask()).answer.translate_whole(document)
    except BrokenAnswer:
        pass


@given(st.sampled_from([400, 403, 404, 422, 429, 503]), changed(ERROR))
def test_a_wrong_member_of_an_error_is_no_error_of_the_gateway(status: int, document: JsonValue) -> None:
    error = answered_error(status, {}, json.dumps(document).encode())
    told = limits(error.status, {}, 0.0, 300.0, error)
    refusal = explained_answer("far", error, told.retry_after_s)
    assert 400 <= refusal.status < 600
    assert refusal.message
