"""The input of a chat template for an OpenAI request: vLLM's form of messages and tools.

Source: vLLM `entrypoints/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`) and its request models
(`ChatCompletionToolsParam`, `FunctionDefinition`). These drop unknown fields of a message, name every field of a
function, and turn the arguments of calls from JSON text into objects.
"""

import json
from collections.abc import Sequence
from typing import Final, cast

from pointsman_models.tokenization.chat_template import Json
from pointsman_models.tokenization.content_format import ContentFormat
from pointsman_models.tokenization.failure import NotTokenized

_TEXTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Type of a part that is text → the field that holds it."""


def conversation(messages: Sequence[object], content_format: ContentFormat) -> list[Json]:
    """Messages for the template. Raises NotTokenized for images, clips and files."""
    return [_message(_object(message, "messages"), content_format) for message in messages]


def tool_list(tools: Sequence[object] | None) -> list[Json] | None:
    """Tools for the template."""
    return None if tools is None else [_tool(_object(tool, "tools")) for tool in tools]


def _message(message: Json, content_format: ContentFormat) -> Json:
    role = message.get("role")
    texts = _parts(message.get("content"))
    # vLLM gives templates the results of tools as a text in either form.
    as_parts = content_format == "openai" and role != "tool"
    told: Json = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts),
    }
    if role == "assistant":
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            told["tool_calls"] = [_call(_object(call, "tool_calls")) for call in cast("list[object]", calls)]
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
        fields = _object(part, "content")
        name = _TEXTS.get(str(fields.get("type")))
        if name is None:
            raise NotTokenized("media", "the prompt isn't text alone")
        text = fields.get(name)
        if isinstance(text, str):
            texts.append(text)
    return texts


def _call(call: Json) -> Json:
    function = dict(_object(call.get("function"), "tool_calls.function"))
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


def _tool(tool: Json) -> Json:
    function = _object(tool.get("function"), "tools.function")
    named: Json = {"name": function.get("name"), "description": None, "parameters": None}
    return {"type": tool.get("type", "function"), "function": {**named, **function}}


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise NotTokenized("shape", f"{where}: not an object")
    return cast("Json", value)
