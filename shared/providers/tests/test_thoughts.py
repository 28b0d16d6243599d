"""Signed reasoning: through a chat's answer, whole or streamed, and back to the model that signed it."""

from typing import Any

import orjson
import pytest
from pydantic import JsonValue

from pointsman_providers.anthropic import Anthropic
from pointsman_providers.bedrock import Bedrock
from pointsman_providers.thoughts import Thought
from pointsman_testing.provider_messages import ask, aws_message, chunks

CLAUDE = "anthropic.claude-x"
USER: JsonValue = {"role": "user", "content": "x"}
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm. ", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    {"type": "thinking", "thinking": "unsigned", "signature": ""},
    {"type": "text", "text": "Yes."},
]
CONVERSED: list[dict[str, Any]] = [
    {"reasoningContent": {"reasoningText": {"text": "Hm. ", "signature": "c2ln"}}},
    {"reasoningContent": {"redactedContent": "ZGF0YQ=="}},
    {"reasoningContent": {"reasoningText": {"text": "unsigned"}}},
    {"text": "Yes."},
]


def _asked(model: str = CLAUDE, **fields: JsonValue) -> Any:
    return ask(**{"messages": [USER], **fields}, model=model)._replace(model=model)


def _sent_back(form: Any, message: dict[str, Any], model: str = CLAUDE) -> list[dict[str, Any]]:
    """The blocks of an answer as the provider gets them with the next request."""
    body = orjson.loads(form.translate_request(_asked(model, messages=[USER, message, USER])).body)
    return body["messages"][1]["content"]


def _from_anthropic() -> dict[str, Any]:
    answer = Anthropic(9).translate_request(_asked()).answer
    return orjson.loads(answer.translate_whole(orjson.dumps({"type": "message", "content": BLOCKS})))["choices"][0][
        "message"
    ]


def test_a_whole_answers_signed_thoughts_return_in_their_order() -> None:
    message = _from_anthropic()
    assert message["reasoning_content"] == "Hm. unsigned"
    assert _sent_back(Anthropic(9), message) == [BLOCKS[0], BLOCKS[1], BLOCKS[3]]


def test_a_streamed_answers_signed_thoughts_return_too() -> None:
    events: list[dict[str, Any]] = []
    for index, block in enumerate(BLOCKS):
        begins = {**block, **{name: "" for name in ("thinking", "signature", "text") if name in block}}
        events.append({"type": "content_block_start", "index": index, "content_block": begins})
        if block["type"] == "thinking":
            pieces = ("Hm.", " ") if block["signature"] else ("unsigned",)
            events += [_delta(index, {"type": "thinking_delta", "thinking": piece}) for piece in pieces]
            events.append(_delta(index, {"type": "signature_delta", "signature": block["signature"]}))
        if block["type"] == "text":
            events.append(_delta(index, {"type": "text_delta", "text": "Yes."}))
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    stream = Anthropic(9).translate_request(_asked(stream=True)).answer.make_stream_reader()
    data = (
        stream.translate_bytes(b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in events))
        + stream.translate_end()
    )
    assert _sent_back(Anthropic(9), _joined(data)) == [BLOCKS[0], BLOCKS[1], BLOCKS[3]]


def test_the_same_holds_for_bedrock() -> None:
    answer = Bedrock().translate_request(_asked()).answer
    document = {"output": {"message": {"content": CONVERSED}}, "stopReason": "end_turn"}
    message = orjson.loads(answer.translate_whole(orjson.dumps(document)))["choices"][0]["message"]
    assert _sent_back(Bedrock(), message) == [CONVERSED[0], CONVERSED[1], CONVERSED[3]]
    deltas: list[dict[str, Any]] = [
        {"reasoningContent": {"text": "Hm."}},
        {"reasoningContent": {"text": " "}},
        {"reasoningContent": {"signature": "c2ln"}},
    ]
    stream = Bedrock().translate_request(_asked(stream=True)).answer.make_stream_reader()
    data = b"".join(aws_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta}) for delta in deltas)
    data += aws_message("contentBlockStop", {"contentBlockIndex": 0})
    data += aws_message("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Yes."}})
    data += aws_message("messageStop", {"stopReason": "end_turn"}) + aws_message("metadata", {"usage": {}})
    assert _sent_back(Bedrock(), _joined(stream.translate_bytes(data) + stream.translate_end())) == [
        CONVERSED[0],
        CONVERSED[3],
    ]


@pytest.mark.parametrize("change", [{"text": "Hm. [NAME]"}, {"signature": "b3RoZXI="}, {"id": "pm-0"}, {"id": None}])
def test_a_thought_that_was_changed_on_the_way_is_left_out(change: dict[str, JsonValue]) -> None:
    message = _from_anthropic()
    message["reasoning_details"][0] |= change
    assert _sent_back(Anthropic(9), message) == [BLOCKS[1], BLOCKS[3]]


def test_another_model_does_not_get_the_thought() -> None:
    assert _sent_back(Anthropic(9), _from_anthropic(), "claude-y") == [BLOCKS[3]]


def test_the_entry_is_in_openrouters_form() -> None:
    entry = Thought("Hm.", "c2ln").detail("m", 2)
    assert isinstance(entry["id"], str)
    assert entry == {
        "type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "format": "anthropic-claude-v1", "index": 2,
        "id": entry["id"],
    }  # fmt: skip


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _joined(data: bytes) -> dict[str, Any]:
    """The message that a client puts together from a stream."""
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(data) if chunk["choices"]]
    details = [entry for delta in deltas for entry in delta.get("reasoning_details", [])]
    return {
        "role": "assistant",
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning_details": details,
    }
