"""Services with OpenAI's API: everything passes but the model's name."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_providers.azure import Azure
from pointsman_providers.errors import BrokenAnswer
from pointsman_providers.exchange import Format
from pointsman_providers.openai import OpenAI
from pointsman_providers.vertex import Vertex
from pointsman_testing.provider_messages import ask, in_pieces


def _event(document: JsonValue) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


CHAT = b"".join(
    (
        b": a comment\r\n\r\n",
        _event(
            {"id": "c", "model": "model-9-2025", "choices": [{"index": 0, "delta": {"content": 'say "model": "x"'}}]}
        ),
        _event({"id": "c", "model": "model-9-2025", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        b"data: [DONE]\r\n\r\n",
    )
)
RESPONSE = b"".join(
    b"event: %b\n%b" % (kind.encode(), _event({"type": kind, "response": {"id": "r", "model": "model-9"}}))
    for kind in ("response.created", "response.completed")
)


@pytest.mark.parametrize(
    ("form", "api", "path"),
    [
        (OpenAI(), "chat.completions", "/chat/completions"),
        (OpenAI(), "embeddings", "/embeddings"),
        (OpenAI(), "responses", "/responses"),
        (Azure(None), "chat.completions", "/openai/v1/chat/completions"),
        (
            Azure("2024-10-21"),
            "chat.completions",
            "/openai/deployments/model-9/chat/completions?api-version=2024-10-21",
        ),
        (Azure("2025-03-01-preview"), "responses", "/openai/responses?api-version=2025-03-01-preview"),
        (Vertex(), "chat.completions", "/chat/completions"),
    ],
)
@pytest.mark.requirement("S0-66")
def test_each_service_has_its_own_paths_and_the_body_passes(form: Format, api: str, path: str) -> None:
    question = ask(api, seed=7, of_their_own=[1])
    call = form.translate_request(question)
    assert (call.path, call.body) == (path, question.body)


@pytest.mark.parametrize("form", [OpenAI(), Azure(None), Vertex()])
def test_an_api_that_it_does_not_have_is_refused(form: Format) -> None:
    with pytest.raises(Refusal) as refused:
        form.translate_request(ask("messages"))
    assert (refused.value.status, refused.value.code) == (400, "unsupported_api")


def test_a_document_carries_the_name_that_the_client_used_and_is_otherwise_the_same() -> None:
    document: dict[str, JsonValue] = {
        "id": "c",
        "model": "model-9-2025",
        "choices": [{"message": {"content": '"model": "model-9-2025"'}}],
        "usage": {"prompt_tokens": 3},
        "price": 0.1,
    }
    passed = orjson.loads(OpenAI().translate_request(ask()).answer.translate_whole(orjson.dumps(document)))
    assert passed == {**document, "model": "large"}


@pytest.mark.parametrize("stream", [CHAT, RESPONSE])
def test_a_stream_carries_the_name_that_the_client_used(stream: bytes) -> None:
    passed = in_pieces(OpenAI().translate_request(ask()).answer.make_stream_reader(), stream, [])
    assert passed.count(b'"model":"large"') == 2
    assert b"model-9" not in passed
    assert passed.count(b"event: ") == stream.count(b"event: ")


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(CHAT)), max_size=12))
def test_a_stream_reads_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    whole = in_pieces(OpenAI().translate_request(ask()).answer.make_stream_reader(), CHAT, [])
    assert in_pieces(OpenAI().translate_request(ask()).answer.make_stream_reader(), CHAT, cuts) == whole


@pytest.mark.parametrize(
    "stream",
    [
        CHAT[: CHAT.rindex(b'data: {"id"')],
        _event({"error": {"message": "overloaded", "type": "server_error"}}),
        _event({"type": "error", "message": "overloaded"}),
        b"data: {broken\n\n",
        b"data: 7\n\n",
    ],
)
def test_a_stream_that_breaks_off_or_ends_with_an_error_is_no_answer(stream: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        in_pieces(OpenAI().translate_request(ask()).answer.make_stream_reader(), stream, [])


def test_a_choice_without_a_delta_gets_an_empty_one() -> None:
    bare: dict[str, JsonValue] = {"index": 0, "finish_reason": None, "content_filter_results": {}}
    reader = OpenAI().translate_request(ask()).answer.make_stream_reader()
    chunk = orjson.loads(reader.translate_bytes(_event({"choices": [bare]})).removeprefix(b"data: "))
    assert chunk["choices"] == [{**bare, "delta": {}}]


def test_bytes_that_are_not_utf_8_reach_no_client() -> None:
    answer = OpenAI().translate_request(ask()).answer
    chunk = _event({"choices": [{"index": 0, "delta": {"content": "Hel"}}]}).replace(b"Hel", b"H\xff\xfel")
    told = orjson.loads(answer.make_stream_reader().translate_bytes(chunk).removeprefix(b"data: "))
    assert told["choices"][0]["delta"]["content"] == "H\ufffd\ufffdl"
    whole = answer.translate_whole(b'{"model":"m","choices":[{"message":{"content":"H\xffl"}}]}')
    assert orjson.loads(whole)["choices"][0]["message"]["content"] == "H\ufffdl"


@pytest.mark.parametrize("index", [None, "x", [], {}, 1.5, True, [0]])
def test_an_index_of_any_kind_leaves_a_stream_readable(index: JsonValue) -> None:
    call: JsonValue = {"index": index, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    chunks: list[JsonValue] = [
        {"choices": [{"index": index, "delta": {"content": "Hi", "tool_calls": [call]}, "finish_reason": None}]},
        {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]},
    ]
    told = in_pieces(OpenAI().translate_request(ask()).answer.make_stream_reader(), b"".join(map(_event, chunks)), [])
    assert b'"content":"Hi"' in told
    assert told.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]"])
def test_a_document_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        OpenAI().translate_request(ask()).answer.translate_whole(body)
