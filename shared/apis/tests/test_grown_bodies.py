"""A body that goes on with an earlier one is read as any other, whatever was changed in it."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_apis import grown_bodies
from pointsman_apis.grown_bodies import GrownBodies
from pointsman_apis.requests import StructuredBody, parse
from pointsman_core.refusal import Refusal
from pointsman_testing.agent_forms import claude_code, codex

FILLING = "x" * grown_bodies.LEAST_BYTES
FORMS: dict[str, tuple[str, str]] = {
    "messages": ("/v1/messages", "messages"),
    "responses": ("/v1/responses", "input"),
    "chat": ("/v1/chat/completions", "messages"),
}


def said(form: str, text: str) -> dict[str, Any]:
    kind = "input_text" if form == "responses" else "text"
    return {"role": "user", "content": [{"type": kind, "text": text}]}


def document(form: str, texts: list[str]) -> dict[str, Any]:
    """A request of an agent with these turns behind a long first one."""
    made: dict[str, Any] = {"model": "m", "messages": [], "tools": [], "stream": True}
    if form != "chat":
        made = (codex("m") if form == "responses" else claude_code("m")).body
    return {**made, FORMS[form][1]: [said(form, each) for each in (FILLING, "a", "b", *texts)]}


def same(one: StructuredBody, other: StructuredBody) -> bool:
    names = ("document", "view", "model", "readable", "max_output_tokens", "media", "features", "may_name_session")
    return all(getattr(one, name) == getattr(other, name) for name in names) and list(one.document) == list(
        other.document
    )


def read(form: str, text: bytes, bodies: GrownBodies | None = None) -> StructuredBody | Refusal:
    try:
        return parse(FORMS[form][0], text, bodies=bodies)
    except Refusal as refusal:
        return refusal


def agree(form: str, text: bytes, bodies: GrownBodies) -> None:
    """Both ways read the body alike, or refuse it for the same reason."""
    grown, whole = read(form, text, bodies), read(form, text)
    if isinstance(whole, Refusal):
        assert isinstance(grown, Refusal)
        assert (grown.message, grown.param, grown.code) == (whole.message, whole.param, whole.code)
        return
    assert isinstance(grown, StructuredBody)
    assert same(grown, whole)
    if grown.kept is not None and grown.kept.parts is not None:
        assert grown.kept.parts.prompt.endswith(orjson.dumps(whole.view.messages)[:-1])


@pytest.mark.parametrize("form", FORMS)
def test_only_the_end_of_a_growing_conversation_is_read(form: str) -> None:
    bodies = GrownBodies()
    for turns in range(1, 8):
        agree(form, orjson.dumps(document(form, [str(turn) for turn in range(turns)])), bodies)
    assert bodies.grown == 6


EDITS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "another first turn": lambda body, name: body[name].insert(0, {"role": "user", "content": "new"}),
    "a turn in the middle": lambda body, name: body[name].insert(2, {"role": "user", "content": "new"}),
    "a turn without a role": lambda body, name: body[name].append({"content": "new"}),
    "a turn that is no object": lambda body, name: body[name].append(7),
    "an image": lambda body, name: body[name].append(
        {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "QUFB"}}]}
    ),
    "a text with brackets": lambda body, name: body[name].append({"role": "user", "content": '"],"x":[{"'}),
    "a NUL": lambda body, name: body[name].append({"role": "user", "content": "a\0b"}),
    "other tools": lambda body, _: body.update(tools=[]),
    "another limit": lambda body, _: body.update(max_tokens=-5, max_output_tokens=-5),
    "another model": lambda body, _: body.update(model="n"),
    "too deep": lambda body, name: body[name].append({"role": "user", "content": [nested(300)]}),
}


def nested(levels: int) -> Any:
    made: Any = {"type": "tool_result"}
    for _ in range(levels):
        made = {"type": "tool_result", "content": [made]}
    return made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("edit", EDITS)
def test_a_changed_conversation_is_read_as_if_it_were_the_first(form: str, edit: str) -> None:
    bodies, name = GrownBodies(), FORMS[form][1]
    read(form, orjson.dumps(document(form, ["c"])), bodies)
    changed = document(form, ["c", "d"])
    EDITS[edit](changed, name)
    agree(form, json.dumps(changed, separators=(",", ":"), ensure_ascii=False).encode(), bodies)
    agree(form, json.dumps(changed).encode(), bodies)
    agree(form, orjson.dumps(document(form, ["c", "d", "e"])), bodies)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*FORMS]), st.integers(0, 120), st.integers(0, 40), st.binary(max_size=6))
def test_any_change_of_bytes_at_the_end_of_the_messages_is_read_as_without_memory(
    form: str, back: int, cut: int, put: bytes
) -> None:
    bodies = GrownBodies()
    first = orjson.dumps(document(form, ["c"]))
    read(form, first, bodies)
    at = first.rindex(b'"text":"c"') + 20 - back
    agree(form, first[:at] + put + first[at + cut :], bodies)


def test_a_member_that_ends_the_messages_and_begins_them_again_is_refused_as_sent_twice() -> None:
    bodies = GrownBodies()
    first = orjson.dumps(document("chat", ["c"]))
    read("chat", first, bodies)
    put = b'{"role":"user","content":"d"}],"messages":[{"role":"user","content":"e"}'
    end = first.index(b'],"tools"')
    text = first[:end] + b"," + put + first[end:]
    refusal = read("chat", text, bodies)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "duplicate_member"


def test_kept_bodies_are_bounded_and_the_oldest_goes_first() -> None:
    bodies = GrownBodies(max_bytes=35 * len(orjson.dumps(document("chat", ["c"]))))
    conversations = [[said("chat", f"{number}{FILLING}"), *[said("chat", "a")] * 4] for number in range(9)]
    for messages in conversations:
        read("chat", orjson.dumps({**document("chat", []), "messages": messages}), bodies)
    for messages in (conversations[-1], conversations[0]):
        read("chat", orjson.dumps({**document("chat", []), "messages": [*messages, said("chat", "b")]}), bodies)
    assert bodies.grown == 1


def test_conversations_with_one_beginning_are_told_apart() -> None:
    bodies = GrownBodies()
    for turn in range(1, 4):
        for branch in ("left", "right"):
            agree("chat", orjson.dumps(document("chat", [branch] * turn)), bodies)
    assert bodies.grown >= 4
