"""A conversation's later requests have the tokens that they have alone, whatever was kept of the earlier ones."""

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.prompt_tokenizer import Memo, PromptTokenizer, read_folder
from pointsman_testing.agent_forms import claude_code, codex
from pointsman_testing.tiny_tokenizer import CHATML, HEADERS, write_tokenizer

TOOLS_AS_JSON: Final = (
    "{% if tools %}{{ tools | tojson(indent=2) }}{% for t in tools %}{{ t | tojson(indent=4) }}"
    "{{ t.function | tojson }}{% endfor %}{% endif %}" + CHATML
)
TEXTS: Final = ("", "one", "a longer text", '{"a": 1}')
CHANGES: Final = ("grow", "answer", "call", "edit", "drop", "tools", "no tools", "system", "other reader")


@pytest.fixture(scope="module", params=[HEADERS, CHATML, TOOLS_AS_JSON], ids=["headers", "chatml", "json"])
def readers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[PromptTokenizer]:
    folder = read_folder(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), request.param))
    return [PromptTokenizer(folder), PromptTokenizer(folder)]


def tokens(reader: PromptTokenizer, form: str, body: dict[str, Any], memo: Memo | None) -> bytes | str:
    read = {"messages": reader.tokenize_messages, "responses": reader.tokenize_response, "chat": reader.tokenize_chat}
    try:
        return read[form](body.get, memo)
    except NotTokenized as error:
        return error.detail


def said(form: str, role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "input_text" if form == "responses" else "text", "text": text}]}


def call(form: str, text: str) -> dict[str, Any]:
    if form == "responses":
        return {"type": "function_call", "name": "f", "arguments": '{"x": 1}', "call_id": text}
    if form == "chat":
        function = {"name": "f", "arguments": '{"x": 1}'}
        return {"role": "assistant", "tool_calls": [{"type": "function", "id": text, "function": function}]}
    return {"role": "assistant", "content": [{"type": "tool_use", "id": text, "name": "f", "input": {"x": text}}]}


def changed(form: str, body: dict[str, Any], name: str, text: str) -> dict[str, Any]:
    """The next request: a new body that shares the objects that stay."""
    member = "input" if form == "responses" else "messages"
    turns = list(body[member])
    match name:
        case "grow":
            turns.append(said(form, "user", text))
        case "answer":
            turns.append({"role": "assistant", "content": text or "x"})
        case "call":
            turns.append(call(form, text or "c"))
        case "edit":
            turns[len(turns) // 2] = said(form, "user", text)
        case "drop" if len(turns) > 1:
            turns.pop(0)
        case "system":
            turns.append(said(form, "system", text or "rule"))
        case "tools":
            return {**body, "tools": [*(body.get("tools") or ()), *(body.get("tools") or ())][:3]}
        case "no tools":
            return {**body, "tools": None}
        case _:
            pass
    return {**body, member: turns}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["messages", "responses", "chat"]),
    st.lists(st.tuples(st.sampled_from(CHANGES), st.sampled_from(TEXTS)), min_size=1, max_size=6),
)
def test_what_a_conversation_leaves_changes_no_token_of_its_next_request(
    readers: list[PromptTokenizer], form: str, changes: list[tuple[str, str]]
) -> None:
    memo: Memo = {}
    body: dict[str, Any] = (codex("m") if form == "responses" else claude_code("m")).body
    if form == "chat":
        function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
        body = {"messages": [said(form, "user", "hi")], "tools": [{"type": "function", "function": function}]}
    reader = readers[0]
    assert tokens(reader, form, body, memo) == tokens(readers[1], form, body, None)
    for name, text in changes:
        if name == "other reader":
            reader = readers[1] if reader is readers[0] else readers[0]
        body = changed(form, body, name, text)
        assert tokens(reader, form, body, memo) == tokens(readers[1], form, body, None)
