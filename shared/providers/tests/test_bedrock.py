"""OpenAI's chat as AWS Bedrock's Converse, and back; the event stream's bytes are made as AWS specifies them."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_contracts.response import SpecialTokens, Usage
from pointsman_core.refusal import Refusal
from pointsman_providers.bedrock import Bedrock
from pointsman_providers.errors import BrokenAnswer
from pointsman_testing.provider_messages import TOOL, USER, ask, aws_message, chunks, in_pieces

FORMAT = Bedrock()


STREAM = b"".join(
    (
        aws_message("messageStart", {"role": "assistant"}),
        aws_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Let me lóok."}}),
        aws_message("contentBlockStop", {"contentBlockIndex": 0}),
        aws_message(
            "contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t1", "name": "weather"}}}
        ),
        aws_message("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"city":'}}}),
        aws_message("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '"Oslo"}'}}}),
        aws_message("contentBlockStop", {"contentBlockIndex": 1}),
        aws_message("messageStop", {"stopReason": "tool_use"}),
        aws_message(
            "metadata",
            {"usage": {"inputTokens": 12, "outputTokens": 8, "totalTokens": 20}, "metrics": {"latencyMs": 40}},
        ),
    )
)


def put(**fields: JsonValue) -> dict[str, JsonValue]:
    """The request for Bedrock that a chat becomes."""
    return orjson.loads(FORMAT.translate_request(ask(**fields)).body)


@pytest.mark.requirement("S0-66")
def test_a_chat_becomes_a_conversation() -> None:
    asked = put(
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}]},
            {
                "role": "assistant",
                "content": "Looking.",
                "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "3"}]},
        ],
        tools=[TOOL],
        tool_choice="required",
        max_tokens=9,
        temperature=0,
        stop=["a", "b"],
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
    )
    assert asked == {
        "system": [{"text": "Be short."}],
        "messages": [
            {"role": "user", "content": [{"image": {"format": "jpeg", "source": {"bytes": "AAAA"}}}]},
            {
                "role": "assistant",
                "content": [{"text": "Looking."}, {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {}}}],
            },
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "3"}]}}]},
        ],
        "inferenceConfig": {"maxTokens": 9, "temperature": 0, "stopSequences": ["a", "b"]},
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "weather",
                        "description": "Now",
                        "inputSchema": {
                            "json": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
                        },
                    }
                }
            ],
            "toolChoice": {"any": {}},
        },
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {"schema": '{"type":"object","additionalProperties":false}', "name": "s"}},
            }
        },
    }


def test_the_model_is_part_of_the_path() -> None:
    question = ask(stream=True)._replace(model="eu.anthropic.claude-9-v1:0")
    assert FORMAT.translate_request(question).path == "/model/eu.anthropic.claude-9-v1%3A0/converse-stream"
    assert FORMAT.translate_request(ask()).path == "/model/model-9/converse"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_k": 4}, "top_k"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"messages": [{"role": "user", "content": "\n"}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://p.example"}}]}
                ]
            },
            "messages",
        ),
    ],
)
def test_a_field_without_an_equivalent_there_is_refused_by_name(fields: dict[str, JsonValue], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        put(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.requirement("S0-66")
def test_a_whole_answer_becomes_a_chat_completion() -> None:
    answer = FORMAT.translate_request(ask()).answer
    document = orjson.loads(
        answer.translate_whole(
            orjson.dumps(
                {
                    "output": {
                        "message": {
                            "role": "assistant",
                            "content": [
                                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
                                {"text": "So."},
                                {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Oslo"}}},
                            ],
                        }
                    },
                    "stopReason": "tool_use",
                    "usage": {"inputTokens": 12, "outputTokens": 8, "totalTokens": 25, "cacheReadInputTokens": 5},
                    "metrics": {"latencyMs": 1},
                }
            )
        )
    )
    assert (document["id"], document["model"], document["created"]) == ("chatcmpl-req-1", "large", 1_700_000_000)
    assert document["choices"][0]["finish_reason"] == "tool_calls"
    said = document["choices"][0]["message"]
    assert (said["content"], said["reasoning_content"]) == ("So.", "Hm.")
    assert said["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert document["usage"]["prompt_tokens"] == 17
    assert document["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


def test_tokens_that_the_cache_keeps_are_reported_with_how_long() -> None:
    answer = FORMAT.translate_request(ask(messages=[USER])).answer
    usage = {
        "inputTokens": 3, "outputTokens": 8, "cacheReadInputTokens": 2, "cacheWriteInputTokens": 9,
        "cacheDetails": [{"ttl": "5m", "inputTokens": 5}, {"ttl": "1h", "inputTokens": 4}],
    }  # fmt: skip
    answer.translate_whole(orjson.dumps({"output": {"message": {"role": "assistant", "content": []}}, "usage": usage}))
    special = SpecialTokens(cache_write=9, cache_write_1h=4)
    assert answer.usage == Usage(prompt_tokens=14, completion_tokens=8, cached_tokens=2, special=special)


@pytest.mark.parametrize("count", [2**63, 2**53 + 1, -1, True])
def test_a_number_that_no_request_can_have_used_is_unknown(count: int) -> None:
    answer = FORMAT.translate_request(ask(messages=[USER])).answer
    usage: JsonValue = {"inputTokens": count, "outputTokens": 8}
    body: JsonValue = {"output": {"message": {"role": "assistant", "content": []}}, "usage": usage}
    whole = orjson.loads(answer.translate_whole(orjson.dumps(body)))
    assert answer.usage == Usage(completion_tokens=8)
    assert whole["usage"] is None


@pytest.mark.requirement("S0-66")
def test_a_stream_becomes_openais_chunks() -> None:
    question = ask(stream=True, stream_options={"include_usage": True}, messages=[USER])
    found = chunks(in_pieces(FORMAT.translate_request(question).answer.make_stream_reader(), STREAM, []))
    assert found[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": "Let me lóok."}, "logprobs": None, "finish_reason": None}
    ]
    assert found[-2]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}]
    assert found[-1]["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 8,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
def test_a_stream_reads_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    question = ask(stream=True)
    whole = in_pieces(FORMAT.translate_request(question).answer.make_stream_reader(), STREAM, [])
    assert in_pieces(FORMAT.translate_request(question).answer.make_stream_reader(), STREAM, cuts) == whole


@pytest.mark.parametrize(
    "broken",
    [
        aws_message("throttlingException", {"message": "Too many"}, exception=True),
        STREAM[:-20] + b"x" * 20,
        b'{"message": "not a stream at all"}',
    ],
)
def test_an_exception_or_damage_within_the_stream_is_no_answer(broken: bytes) -> None:
    stream = FORMAT.translate_request(ask(stream=True)).answer.make_stream_reader()
    with pytest.raises(BrokenAnswer):
        stream.translate_bytes(broken)


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    stream = FORMAT.translate_request(ask(stream=True)).answer.make_stream_reader()
    stream.translate_bytes(STREAM[: len(STREAM) // 2])
    with pytest.raises(BrokenAnswer):
        stream.translate_end()


@pytest.mark.parametrize("reason", ["malformed_tool_use", "malformed_model_output"])
def test_an_answer_that_bedrock_calls_malformed_is_no_answer(reason: str) -> None:
    call = FORMAT.translate_request(ask())
    content = [{"text": "I'll look."}]
    with pytest.raises(BrokenAnswer) as whole:
        call.answer.translate_whole(orjson.dumps({"output": {"message": {"content": content}}, "stopReason": reason}))
    stream = FORMAT.translate_request(ask(stream=True)).answer.make_stream_reader()
    begun = aws_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "I'll look."}})
    assert b"look" in stream.translate_bytes(begun)
    with pytest.raises(BrokenAnswer) as streamed:
        stream.translate_bytes(aws_message("messageStop", {"stopReason": reason}))
    for broken in (whole.value, streamed.value):
        assert broken.error is not None
        assert broken.error.kind == reason


def test_an_announced_call_that_doesnt_come_is_no_reason_to_wait_for_one() -> None:
    answer = FORMAT.translate_request(ask()).answer
    said = answer.translate_whole(
        orjson.dumps({"output": {"message": {"content": [{"text": "Done."}]}}, "stopReason": "tool_use"})
    )
    assert orjson.loads(said)["choices"][0]["finish_reason"] == "stop"
