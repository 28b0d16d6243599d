"""The parts of a request that decide its answer, and its client's wishes for caches."""

import orjson
import pytest

from pointsman_contracts.journey import BodyEdit
from pointsman_semantic_cache.domain.asked import CacheQuestion, asked
from pointsman_semantic_cache.domain.wishes import Wishes, wishes

CHAT = "chat.completions"
TEXT = {"type": "text", "text": "What is this?"}
Body = dict[str, object]


def chat(*said: object, **more: object) -> Body:
    messages = [{"role": "user", "content": content} if isinstance(content, str) else content for content in said]
    return {"model": "m", "messages": messages, **more}


def read(body: Body, *edits: BodyEdit, api: str = CHAT) -> CacheQuestion:
    result = asked(api, orjson.dumps(body), edits)
    assert result is not None
    return result


@pytest.mark.parametrize(
    "same",
    [
        chat("hi", user="alice", metadata={"trace": "7"}),
        chat("hi", stream=False, n=1, temperature=None),
        {"messages": [{"content": "hi", "role": "user"}], "model": "another-name"},
    ],
)
def test_neither_the_client_nor_the_spelling_changes_the_key(same: Body) -> None:
    assert read(same).exact == read(chat("hi")).exact


@pytest.mark.parametrize(
    "other",
    [
        chat("hi!"),
        chat("hi", stream=True),
        chat("hi", temperature=0.1),
        chat("hi", seed=1),
        chat("hi", cache_salt="a"),
        chat("hi", max_tokens=5),
        chat("hi", tools=[{"type": "function", "function": {"name": "f"}}]),
        chat("hi", response_format={"type": "json_object"}),
        chat({"role": "system", "content": "Be rude."}, "hi"),
        chat("hi", engine_specific=True),
    ],
)
def test_whatever_else_is_asked_is_another_request(other: Body) -> None:
    assert read(other).exact != read(chat("hi")).exact


def test_the_gateways_own_edits_count_and_what_is_for_its_eyes_alone_does_not() -> None:
    plain, usage = read(chat("hi")), BodyEdit(field="stream_options", value={"include_usage": True}, unasked=True)
    assert read(chat("hi"), usage).exact == plain.exact
    assert read(chat("hi"), BodyEdit(field="max_tokens", value=8)).exact == read(chat("hi", max_tokens=8)).exact
    assert read(chat("hi", seed=1), BodyEdit(field="seed", remove=True)).exact == plain.exact


def test_only_the_last_turn_may_be_put_otherwise() -> None:
    system, rude = {"role": "system", "content": "Be kind."}, {"role": "system", "content": "Be rude."}
    one, other = read(chat(system, "How are you?")), read(chat(system, "How do you do?"))
    assert one.context == other.context
    assert one.exact != other.exact
    assert read(chat(rude, "How are you?")).context != one.context
    parts = [{"type": "text", "text": "How are"}, {"type": "text", "text": "you?"}]
    assert read(chat(system, {"role": "user", "content": parts})).turn == "How are\nyou?"


@pytest.mark.parametrize(
    "body",
    [
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
        chat({"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "data:"}}]}),
        chat({"role": "user", "content": [TEXT, {"type": "tool_result", "text": "42"}]}),
        chat({"role": "user", "content": [TEXT, "What is that?"]}),
        chat({"role": "user", "content": [TEXT, {"type": "text", "text": 7}]}),
        chat("hi", {"role": "assistant", "content": "hello"}),
        chat("hi", {"role": "tool", "tool_call_id": "1", "content": "42"}),
        {"model": "m", "messages": []},
        {"model": "m", "messages": "hi, but not in a list"} | {"messages": 7},
    ],
)
def test_a_body_beyond_a_users_text_is_answered_again_to_the_very_same_request_alone(body: Body) -> None:
    assert read(body).turn == ""
    assert read(body).exact


def test_every_api_is_read() -> None:
    assert read({"model": "m", "prompt": "say hi"}, api="completions").turn == "say hi"
    assert read({"model": "m", "prompt": ["a", "b"]}, api="completions").turn == ""
    assert read({"model": "m", "input": "say hi"}, api="responses").turn == "say hi"
    items = [{"role": "user", "content": [{"type": "input_text", "text": "say hi"}]}]
    assert read({"model": "m", "input": items}, api="responses").turn == "say hi"
    assert read({"model": "m", "input": "say hi"}, api="embeddings").turn == ""
    assert (
        read({"model": "m", "input": "x"}, api="responses").exact != read({"model": "m", "input": "x"}, api="y").exact
    )
    assert asked(CHAT, b"[1]", ()) is None
    assert asked(CHAT, b"{", ()) is None


@pytest.mark.requirement("CACHE-4")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Wishes()),
        ({"cache-control": "No-Store"}, Wishes(look=False, keep=False)),
        ({"cache-control": "max-age=60, no-store"}, Wishes(look=False, keep=False)),
        ({"cache-control": "no-cache"}, Wishes(look=False)),
        ({"cache-control": "max-age=0"}, Wishes(look=False, max_age_s=0)),
        ({"cache-control": 'max-age="30"'}, Wishes(max_age_s=30)),
        ({"cache-control": "max-age=-1, private"}, Wishes()),
        ({"pragma": "no-cache"}, Wishes(look=False)),
    ],
)
def test_a_client_says_what_it_wants_of_caches(headers: dict[str, str], expected: Wishes) -> None:
    assert wishes(headers) == expected
