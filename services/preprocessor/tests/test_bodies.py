"""Processors, and the prompt's writer, on a parsed body."""

import json
from collections.abc import Callable
from typing import Final

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis import READ
from pointsman_apis.requests import DEEPEST, parse
from pointsman_core.fingerprint import deciding, fingerprint
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import Incoming
from pointsman_plugins.prompt import prompt_of
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing import builders

PATHS: Final = {api.name: api.path for api in READ}
GOOD: Final[dict[str, dict[str, JsonValue]]] = {
    "chat.completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "embeddings": {"model": "m", "input": ["hi", "you"]},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]},
}


def chat(**fields: JsonValue) -> Incoming:
    envelope = builders.preprocess_request(path=PATHS["chat.completions"])
    return Incoming(envelope, parse(envelope.path, orjson.dumps(GOOD["chat.completions"] | fields)), read_headers({}))


@pytest.mark.requirement("S4-14", "S4-19", "S4-16")
def test_a_plugin_reads_the_prompt_by_typed_members_and_any_member_of_the_body_by_name() -> None:
    incoming = chat(tools=[{"type": "function"}], top_k=7)
    assert incoming.body.view.messages == [{"role": "user", "content": "hi"}]
    assert incoming.body.view.head[0] == [{"type": "function"}]
    assert incoming.field("top_k") == 7


@pytest.mark.requirement("S4-3", "S4-11")
def test_members_of_chat_templates_are_checked_and_readable() -> None:
    fields: dict[str, JsonValue] = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "documents": [{"title": "t", "text": "x"}],
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": True,
        "continue_final_message": False,
        "return_assistant_tokens_mask": True,
    }
    incoming = chat(**fields)
    assert {name: incoming.field(name) for name in fields} == fields
    for name in fields:
        with pytest.raises(Refusal) as refused:
            chat(**{name: 1})
        assert refused.value.param == name


def nested(levels: int, kind: str) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value] if kind == "array" else {"a": value}
    return value


DEEP: Final[dict[str, tuple[str, Callable[[JsonValue], dict[str, JsonValue]]]]] = {
    "a field that nobody knows": ("embeddings", lambda deep: {"x": deep}),
    "a field of another API": ("chat.completions", lambda deep: {"input": deep}),
    "metadata": ("completions", lambda deep: {"metadata": {"a": deep}}),
    "a tool": ("chat.completions", lambda deep: {"tools": [{"type": "function", "function": deep}]}),
    "arguments": (
        "chat.completions",
        lambda deep: {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": deep}}]}]},
    ),
    "a field of a message": (
        "chat.completions",
        lambda deep: {"messages": [{"role": "user", "content": "", "x": deep}]},
    ),
    "a part": ("messages", lambda deep: {"messages": [{"role": "user", "content": [{"type": "x", "x": deep}]}]}),
    "an image": (
        "chat.completions",
        lambda deep: {
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "x": deep}}]}]
        },
    ),
    "a schema": ("messages", lambda deep: {"tools": [{"name": "f", "input_schema": deep}]}),
    "an item": ("responses", lambda deep: {"input": [{"type": "x", "x": deep}]}),
    "documents": ("chat.completions", lambda deep: {"documents": [{"a": deep}]}),
    "arguments of the template": ("chat.completions", lambda deep: {"chat_template_kwargs": {"a": deep}}),
}


@pytest.mark.parametrize("kind", ["array", "object"])
@pytest.mark.parametrize("where", DEEP)
def test_a_body_that_nests_too_deep_is_refused_and_one_that_passes_can_be_written_with_more_around_it(
    where: str, kind: str
) -> None:
    api, place = DEEP[where]
    passed: list[int] = []
    for levels in (DEEPEST - 10, *range(230, 260), 900):
        try:
            # orjson writes none of the deeper ones.
            body = parse(PATHS[api], json.dumps(GOOD[api] | place(nested(levels, kind))).encode())
            prompt_of(body)
        except Refusal as refused:
            if refused.code != "body_too_complex":
                raise
            continue
        fingerprint(api, deciding(body.document))
        orjson.dumps([[[body.document]]])
        passed.append(levels)
    assert passed[0] == DEEPEST - 10
    assert passed[-1] < 250
