"""A conversation begun with any model continues with any other: what is sent is held against the makers' schemas.

`CONVERSATIONS=2000` has as many conversations generated; the default keeps the whole suite quick.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_core.config import Provider
from pointsman_providers.kinds import KINDS
from pointsman_testing.makers import problems
from pointsman_testing.provider_messages import ask

CONVERSATIONS: Final = int(os.environ.get("CONVERSATIONS", "60"))
Message = dict[str, Any]
Strategy = st.SearchStrategy[Any]

NAMES: Final = ("now", "get_weather", "mcp__files__read")
TOOLS: Final[list[JsonValue]] = [
    {"type": "function", "function": {"name": "now", "parameters": {}}},
    {"type": "function", "function": {"name": "get_weather", "description": " ", "parameters": {"properties": {}}}},
    {"type": "function", "function": {"name": "mcp__files__read", "parameters": {"type": ["object", "null"]}}},
]

_TEXT: Final = st.sampled_from(["Hello.", "\n\n", "", " ", "It is 12:00.  ", "Grüße 🎉", "a" * 60])
_SAID: Final = st.sampled_from(["Hello.", "What is it?", "Grüße 🎉"])
_HEX: Final = st.text("0123456789abcdef", min_size=32, max_size=32)
_ARGUMENTS: Final = st.sampled_from(
    ["{}", "", '{"city":"Oslo"}', '{"city": "Os', "null", '"{\\"a\\":1}"', "[1]", '{"deep":{"er":[1,2.5,null]}}']
)
_MARK: Final[Message] = {"cache_control": {"type": "ephemeral"}}
_IMAGE: Final[JsonValue] = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AAAA"}}


def _calls(ids: Strategy, arguments: Strategy = _ARGUMENTS, **more: JsonValue) -> Strategy:
    function = st.fixed_dictionaries({"name": st.sampled_from(NAMES), "arguments": arguments})
    call = st.fixed_dictionaries({"id": ids, "type": st.just("function"), "function": function})
    return st.lists(call.map(lambda made: made | more), max_size=3)


def _answer(calls: Strategy, content: Strategy = _TEXT, **more: Strategy) -> Strategy:
    """An assistant's message as a service returns it."""
    members = {"role": st.just("assistant"), "content": content, "tool_calls": calls, **more}
    return st.fixed_dictionaries(members).map(_as_returned)


def _as_returned(message: Message) -> Message:
    return message if message["tool_calls"] else {**message, "tool_calls": []}


def _translated(kind: str) -> Strategy:
    """An answer of Anthropic or Bedrock as the gateway returned it."""
    thought = st.tuples(_SAID, st.sampled_from(["c2lnbmVk", ""]))
    call = st.tuples(st.sampled_from(NAMES), _HEX)
    return st.tuples(st.lists(thought, max_size=2), _TEXT, st.lists(call, max_size=2)).map(
        lambda parts: _returned(kind, *parts)
    )


def _returned(kind: str, thoughts: Sequence[tuple[str, str]], text: str, calls: Sequence[tuple[str, str]]) -> Message:
    blocks: list[Any] = []
    if kind == "anthropic":
        blocks += [{"type": "thinking", "thinking": said, "signature": signed} for said, signed in thoughts]
        blocks.append({"type": "text", "text": text})
        blocks += [{"type": "tool_use", "id": f"toolu_{i}", "name": name, "input": {"a": 1}} for name, i in calls]
        answer = {"type": "message", "content": blocks, "stop_reason": "end_turn"}
    else:
        blocks += [
            {"reasoningContent": {"reasoningText": {"text": said, "signature": signed}}} for said, signed in thoughts
        ]
        blocks.append({"text": text})
        blocks += [{"toolUse": {"toolUseId": f"tooluse_{i}", "name": name, "input": {}}} for name, i in calls]
        answer = {"output": {"message": {"content": blocks}}, "stopReason": "end_turn"}
    read = _format(kind).translate_request(_question({"messages": [{"role": "user", "content": "x"}]}, kind)).answer
    message: Message = orjson.loads(read.translate_whole(orjson.dumps(answer)))["choices"][0]["message"]
    return message


ORIGINS: Final[dict[str, Strategy]] = {
    "openai": _answer(
        _calls(_HEX.map(lambda made: f"call_{made[:24]}")),
        refusal=st.sampled_from([None, "I can't."]), annotations=st.just([]), audio=st.none(), function_call=st.none(),
    ),
    "kimi": _answer(
        st.lists(st.sampled_from(NAMES), max_size=3).map(
            lambda names: [
                {"id": f"functions.{name}:{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
                for at, name in enumerate(names)
            ]
        ),
        reasoning_content=_TEXT, reasoning=_TEXT, token_ids=st.none(),
    ),
    "qwen": _answer(_calls(_HEX.map(lambda made: f"chatcmpl-tool-{made}")), reasoning_content=st.none() | _TEXT),
    "deepseek": _answer(_calls(_HEX.map(lambda made: f"call_0_{made}-{made[:8]}"), index=0), reasoning_content=_TEXT),
    "glm": _answer(_calls(st.just("call_0"), _ARGUMENTS | st.just({"a": 1})), reasoning_content=_TEXT),
    "nameless": _answer(_calls(st.sampled_from(["", None]))),
    "mistral": _answer(
        _calls(_HEX.map(lambda made: made[:9])),
        st.just([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}, {"type": "text", "text": "Yes."}]),
    ),
    "gemini": _answer(_calls(_HEX, extra_content={"google": {"thought_signature": "c2ln"}})),
    "anthropic": _translated("anthropic"),
    "bedrock": _translated("bedrock"),
}  # fmt: skip
"""Whose form an answer in a history has."""

_USER: Final = st.one_of(
    _SAID.map(lambda text: {"role": "user", "content": text}),
    st.lists(_TEXT.map(lambda text: {"type": "text", "text": text}) | st.just(_IMAGE), min_size=1, max_size=3).map(
        lambda parts: {"role": "user", "content": parts}
    ),
    _SAID.map(lambda text: {"role": "user", "content": [{"type": "text", "text": text, **_MARK}]}),
)
_RESULT: Final = _TEXT | st.lists(st.just({"type": "text", "text": "12:00"}) | st.just({"type": "text", "text": " "}))


@st.composite
def _conversation(draw: st.DrawFn) -> list[Message]:
    """A history by several models, whose last message is the user's or a result."""
    found: list[Message] = []
    if draw(st.booleans()):
        found.append({"role": "system", "content": draw(_TEXT)})
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 4)):
            found.append(draw(_USER))
        answer: Message = draw(draw(st.sampled_from(list(ORIGINS.values()))))
        found.append(answer)
        calls: Any = answer.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": call["id"], "content": draw(_RESULT)} for call in calls]
        match draw(st.sampled_from(["whole", "whole", "whole", "turned", "interrupted", "strange"])):
            case "turned":
                results.reverse()
            case "interrupted":
                del results[1:]
            case "strange":
                results.append({"role": "tool", "tool_call_id": "another", "content": "?"})
            case _:
                pass
        found += results
    return [*found, draw(_SAID.map(lambda text: {"role": "user", "content": text}))]


MODELS: Final = {"anthropic": "claude-x", "bedrock": "eu.anthropic.claude-x-v1:0", "vertex": "google/gemini-3-pro"}
TARGETS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "openai": ("openai", {}),
    "mistral": ("openai", {"base_url": "https://api.mistral.ai/v1"}),
    "azure": ("azure", {"base_url": "https://x.openai.azure.com"}),
    "vertex": ("vertex", {"project": "p", "location": "global"}),
    "anthropic": ("anthropic", {}),
    "bedrock": ("bedrock", {"region": "eu-north-1"}),
}


def _format(target: str) -> Any:
    kind, more = TARGETS[target]
    return KINDS[kind].format(Provider(kind=kind, **more))


def _question(fields: dict[str, Any], target: str) -> Any:
    model = MODELS.get(TARGETS[target][0], "gpt-x")
    return ask(**fields, model=model)._replace(model=model)


_OFFERS: Final[list[dict[str, Any]]] = [{"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {}]


@pytest.mark.timeout(120 + CONVERSATIONS)
@settings(max_examples=CONVERSATIONS)
@given(messages=_conversation(), offer=st.sampled_from(_OFFERS))
def test_a_conversation_that_any_models_began_is_what_every_provider_takes(
    messages: list[Message], offer: dict[str, Any]
) -> None:
    for target, (kind, _) in TARGETS.items():
        call = _format(target).translate_request(_question({"messages": messages, **offer}, target))
        assert problems(kind, call.path, call.headers, orjson.loads(call.body)) == []
        for said in _said(messages):
            assert orjson.dumps(said)[1:-1] in call.body


@st.composite
def _messages(draw: st.DrawFn) -> list[Message]:
    """A history of `/v1/messages` by vLLM's models: thinking without a signature, ids of their parsers, blank texts."""
    found: list[Message] = []
    for _ in range(draw(st.integers(1, 4))):
        found.append({"role": "user", "content": draw(_SAID | st.just([{"type": "text", "text": "Hm?"}]))})
        blocks: list[Any] = [{"type": "thinking", "thinking": "Hm.", "signature": draw(st.sampled_from(["", None]))}]
        blocks.append({"type": "text", "text": draw(_TEXT)} | draw(st.sampled_from([{}, _MARK])))
        ids = draw(st.lists(st.sampled_from(["functions.now:0", "call_0", "chatcmpl-tool-" + "0" * 60]), max_size=2))
        blocks += [{"type": "tool_use", "id": each, "name": "now", "input": {}} for each in ids]
        found.append({"role": "assistant", "content": blocks})
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": each, "content": [{"type": "text", "text": draw(_TEXT)}]}
            for each in ids[: draw(st.integers(0, 2))]
        ]
        if results:
            found.append({"role": "user", "content": [{"type": "text", "text": draw(_TEXT)}, *results]})
        if draw(st.booleans()):
            found.append({"role": "system", "content": "Be short."})
    return [*found, {"role": "user", "content": "And now?"}]


@pytest.mark.timeout(120 + CONVERSATIONS)
@settings(max_examples=CONVERSATIONS)
@given(messages=_messages())
def test_a_history_of_messages_that_another_service_made_is_what_anthropic_takes(messages: list[Message]) -> None:
    tools: list[Any] = [{"name": "now", "input_schema": {}}]
    history: Any = messages
    question = ask("messages", messages=history, tools=tools, max_tokens=5, system=[{"type": "text", "text": " "}])
    call = _format("anthropic").translate_request(question)
    assert problems("anthropic", call.path, call.headers, orjson.loads(call.body)) == []


def test_a_history_that_the_service_takes_stays_byte_for_byte() -> None:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "c2ln"}, _use("toolu_1")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "12:00"}]},
    ]
    body = json.dumps({"model": "model-9", "max_tokens": 5, "messages": messages}, indent=1).encode()
    assert _format("anthropic").translate_request(ask("messages")._replace(body=body)).body == body
    call: JsonValue = {"id": "functions.now:0", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    said: JsonValue = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    chat: JsonValue = [
        {"role": "user", "content": "x"},
        said,
        {"role": "tool", "tool_call_id": "functions.now:0", "content": "1"},
    ]
    body = json.dumps({"model": "model-9", "messages": chat}, indent=1).encode()
    lenient = KINDS["openai"].format(Provider(kind="openai", base_url="https://models.example/v1"))
    assert lenient.translate_request(ask()._replace(body=body)).body == body


def _use(identity: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "now", "input": {}}


def _said(messages: list[Message]) -> list[str]:
    """The texts of users."""
    found: list[str] = []
    for message in messages:
        content: Any = message["content"]
        if message["role"] == "user":
            found += [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
    return [text for text in found if text.strip()]
