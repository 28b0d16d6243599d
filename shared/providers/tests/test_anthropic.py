"""OpenAI's chat as Anthropic's messages, and back. Formats: https://docs.anthropic.com/en/api/messages"""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.streams import KEEP_ALIVE
from pointsman_contracts.response import SpecialTokens
from pointsman_core.refusal import Refusal
from pointsman_providers.anthropic import Anthropic
from pointsman_providers.errors import BrokenAnswer
from pointsman_providers.thoughts import Thought
from pointsman_testing.provider_messages import TOOL, USER, ask, chunks, in_pieces

FORMAT = Anthropic(4096)


def put(**fields: JsonValue) -> dict[str, JsonValue]:
    """The message that a chat becomes."""
    return orjson.loads(FORMAT.translate_request(ask(**fields)).body)


def events(*documents: JsonValue) -> bytes:
    """The stream of these events."""
    found = [b"event: ping\ndata: " + orjson.dumps({"type": "ping"}) + b"\n\n"]
    for document in documents:
        assert isinstance(document, dict)
        found.append(b"event: %b\ndata: %b\n\n" % (str(document["type"]).encode(), orjson.dumps(document)))
    return b"".join(found)


STREAM = events(
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "model-9-20251001",
            "usage": {"input_tokens": 20, "cache_read_input_tokens": 5, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lóok."}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "t1", "name": "weather", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"city": "O'}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": 'slo"}'}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
    },
    {"type": "content_block_stop", "index": 2},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 33},
    },
    {"type": "message_stop"},
)


@pytest.mark.requirement("S0-66")
def test_a_chat_becomes_a_message_with_everything_that_it_asks_for() -> None:
    asked = put(
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "developer", "content": [{"type": "text", "text": "And kind."}]},
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "3 degrees"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "And here?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "image_url", "image_url": {"url": "https://pictures.example/1.png"}},
                ],
            },
        ],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        max_completion_tokens=100,
        temperature=0.5,
        top_p=0.9,
        stop="END",
        user="u-1",
        stream=True,
        n=1,
        logprobs=False,
        seed=None,
        top_k=4,
    )
    assert asked == {
        "model": "model-9",
        "max_tokens": 100,
        "system": "Be short.\n\nAnd kind.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3 degrees"}]},
                    {"type": "text", "text": "And here?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                    {"type": "image", "source": {"type": "url", "url": "https://pictures.example/1.png"}},
                ],
            },
        ],
        "tools": [
            {
                "name": "weather",
                "description": "Now",
                "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            }
        ],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u-1"},
        "stream": True,
    }


def test_a_chat_without_a_limit_gets_the_configured_one_which_this_api_insists_on() -> None:
    assert put()["max_tokens"] == 4096


def test_a_schema_for_the_answer_and_an_effort_become_the_output_configuration() -> None:
    asked = put(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        reasoning_effort="low",
    )
    schema = {"type": "object", "additionalProperties": False}
    assert asked["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": 7}, "seed"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": 1.5}, "temperature"),
        ({"reasoning_effort": "minimal"}, "reasoning_effort"),
        ({"reasoning_effort": 0.5}, "reasoning_effort"),
        ({"guided_regex": "a*"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"messages": [{"role": "function", "name": "f", "content": ""}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"stop": ["\n\n"]}, "stop"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "x"}}]}
                ]
            },
            "messages[0].content[0].cache_control",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_field_without_an_equivalent_there_is_refused_by_name(fields: dict[str, JsonValue], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        put(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert f"`{param}`" in refused.value.message
    assert "Anthropic" in refused.value.message


def test_an_api_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(
        Refusal, match=r"Anthropic, which doesn't have the API embeddings; it has chat\.completions, messages"
    ):
        FORMAT.translate_request(ask("embeddings", input="x"))


@pytest.mark.requirement("S0-66")
def test_a_whole_message_becomes_a_chat_completion() -> None:
    answer = FORMAT.translate_request(ask()).answer
    document = orjson.loads(
        answer.translate_whole(
            orjson.dumps(
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "model": "model-9-20251001",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                        {"type": "text", "text": "It "},
                        {"type": "text", "text": "depends."},
                        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                    ],
                    "stop_reason": "tool_use",
                    "usage": {
                        "input_tokens": 10,
                        "cache_read_input_tokens": 4,
                        "cache_creation_input_tokens": 2,
                        "output_tokens": 7,
                    },
                }
            )
        )
    )
    assert document == {
        "id": "msg_1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "large",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "It depends.",
                    "refusal": None,
                    "reasoning_content": "Hm.",
                    "reasoning_details": [Thought("Hm.", "s").detail("model-9", 0)],
                    "tool_calls": [
                        {
                            "id": "t1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                        }
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 16,
            "completion_tokens": 7,
            "total_tokens": 23,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        },
    }
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (16, 4)
    assert answer.usage.special == SpecialTokens(cache_write=2)


@pytest.mark.parametrize("count", [2**63, 2**53 + 1, -1, True])
def test_a_number_that_no_request_can_have_used_is_no_count(count: int) -> None:
    answer = FORMAT.translate_request(ask()).answer
    answer.translate_whole(orjson.dumps({"content": [], "usage": {"input_tokens": count, "output_tokens": 7}}))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (0, 7)


@pytest.mark.parametrize(
    ("reason", "finish"), [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "content_filter")]
)
def test_the_stop_reason_of_a_message_is_translated_into_openais_words(reason: str, finish: str) -> None:
    message: JsonValue = {"content": [{"type": "text", "text": "x"}], "stop_reason": reason, "usage": {}}
    document = orjson.loads(FORMAT.translate_request(ask()).answer.translate_whole(orjson.dumps(message)))
    assert document["choices"][0]["finish_reason"] == finish


@pytest.mark.requirement("S0-66")
def test_a_stream_becomes_openais_chunks_with_tool_calls_and_usage() -> None:
    question = ask(stream=True, stream_options={"include_usage": True})
    answer = FORMAT.translate_request(question).answer
    found = chunks(in_pieces(answer.make_stream_reader(), STREAM, []))
    assert {(chunk["id"], chunk["model"], chunk["object"]) for chunk in found} == {
        ("msg_1", "large", "chat.completion.chunk")
    }
    deltas = [chunk["choices"][0]["delta"] for chunk in found if chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": "Let me "}
    assert deltas[1] == {"content": "lóok."}
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [call["index"] for call in calls] == [0, 0, 0, 1, 1]
    assert "".join(call["function"]["arguments"] for call in calls[:3]) == '{"city": "Oslo"}'
    assert "".join(call["function"]["arguments"] for call in calls[3:]) == "{}"
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert found[-1]["usage"] == {
        "prompt_tokens": 25,
        "completion_tokens": 33,
        "total_tokens": 58,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    assert answer.usage is not None


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
def test_a_stream_reads_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    question = ask(stream=True)
    whole = in_pieces(FORMAT.translate_request(question).answer.make_stream_reader(), STREAM, [])
    assert in_pieces(FORMAT.translate_request(question).answer.make_stream_reader(), STREAM, cuts) == whole


def test_the_client_gets_nothing_before_there_is_content_so_that_another_model_may_still_answer() -> None:
    stream = FORMAT.translate_request(ask(stream=True)).answer.make_stream_reader()
    begun = STREAM[: STREAM.index(b"event: content_block_delta")]
    assert stream.translate_bytes(begun) == KEEP_ALIVE
    assert not stream.has_begun
    error = events({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    with pytest.raises(BrokenAnswer):
        stream.translate_bytes(error)


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    stream = FORMAT.translate_request(ask(stream=True)).answer.make_stream_reader()
    stream.translate_bytes(STREAM[: STREAM.index(b"event: message_delta")])
    with pytest.raises(BrokenAnswer):
        stream.translate_end()


def test_anthropics_own_api_passes_with_the_clients_name_of_the_model() -> None:
    call = FORMAT.translate_request(ask("messages", stream=True, max_tokens=5, thinking={"type": "enabled"}))
    assert call.path == "/v1/messages"
    assert orjson.loads(call.body)["thinking"] == {"type": "enabled"}
    passed = in_pieces(call.answer.make_stream_reader(), STREAM, [17, 300])
    assert b'"model":"large"' in passed
    assert b"model-9" not in passed
    assert passed.count(b"event: ") == STREAM.count(b"event: ")
