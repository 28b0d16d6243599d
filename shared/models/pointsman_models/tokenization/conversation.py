"""The input of a chat template for an OpenAI request: vLLM's form of messages and tools.

Source: vLLM `entrypoints/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`) and its request models
(`ChatCompletionToolsParam`, `FunctionDefinition`). These drop unknown fields of a message, name every field of a
function, and turn the arguments of calls from JSON text into objects.
"""

import json
from collections.abc import Sequence
from typing import Final, cast

from pointsman_models.tokenization.body_values import Json, object_at
from pointsman_models.tokenization.content_format import ContentFormat
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.known_values import KnownValues
from pointsman_models.tokenization.messages_form import BILLING

_TEXTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Type of a part that is text → the field that holds it."""


def conversation(
    messages: Sequence[object], content_format: ContentFormat, known: KnownValues, *, calls_as_given: bool = False
) -> list[Json]:
    """Messages for the template. vLLM puts the members of calls into the order of its models, which templates that
    write a call as JSON show; `calls_as_given`: not so. Raises NotTokenized for images, clips and files."""
    return known.find_told(content_format, calls_as_given).map_inputs(
        messages, lambda message: _message(object_at(message, "messages"), content_format, calls_as_given)
    )


def tool_list(tools: Sequence[object] | None) -> list[Json] | None:
    """Tools for the template."""
    return None if tools is None else [_tool(object_at(tool, "tools")) for tool in tools]


def _message(message: Json, content_format: ContentFormat, calls_as_given: bool) -> Json:
    role = message.get("role")
    texts = _parts(message.get("content"))
    if role == "system":
        texts = [text for text in map(_without_billing, texts) if text is not None]
    # vLLM gives templates the results of tools as a text in either form.
    as_parts = content_format == "openai" and role != "tool"
    told: Json = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts),
    }
    if role == "assistant":
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            made = [_call(object_at(call, "tool_calls")) for call in cast("list[object]", calls)]
            told["tool_calls"] = made if calls_as_given else [_in_order(call) for call in made]
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            told["reasoning"] = told["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        told["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        told["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        told["name"] = message["name"]
    return told


def _without_billing(text: str) -> str | None:
    """The text without Claude Code's first line, which differs with every request; None where nothing is left."""
    return text.partition("\n")[2] or None if text.startswith(BILLING) else text


def _parts(content: object) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in cast("list[object]", content):
        if isinstance(part, str):
            texts.append(part)
            continue
        fields = object_at(part, "content")
        name = _TEXTS.get(str(fields.get("type")))
        if name is None:
            raise NotTokenized("media", "the prompt isn't text alone")
        text = fields.get(name)
        if isinstance(text, str):
            texts.append(text)
    return texts


def _call(call: Json) -> Json:
    function = dict(object_at(call.get("function"), "tool_calls.function"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        # No engine reads JSON that nests this deep either.
        except (ValueError, RecursionError):
            arguments = {}
    elif not isinstance(arguments, dict | list):
        arguments = {}
    function["arguments"] = arguments
    return {**call, "function": function}


def _in_order(call: Json) -> Json:
    function = cast("Json", call["function"])
    ordered = {name: function[name] for name in ("arguments", "name") if name in function}
    members = {name: call[name] for name in ("id", "function", "type") if name in call}
    return {**members, **call, "function": {**ordered, **function}}


def _tool(tool: Json) -> Json:
    function = object_at(tool.get("function"), "tools.function")
    named: Json = {"name": function.get("name"), "description": None, "parameters": None}
    return {"type": tool.get("type", "function"), "function": {**named, **function}}
