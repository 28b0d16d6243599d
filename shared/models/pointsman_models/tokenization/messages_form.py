"""Anthropic's `/v1/messages` in the form of a chat, as vLLM turns one into the other before it renders a template.

Source: vLLM 0.32 `entrypoints/anthropic/serving.py` (`to_chat_completion_request`) and `protocol.py`. Arguments of
calls stay objects: vLLM writes them as JSON and reads them again.
"""

from collections.abc import Iterable
from typing import Final, Literal, cast

from pointsman_models.tokenization.body_values import Field, Json, list_or_none, object_at
from pointsman_models.tokenization.chat_template import ChatTemplate
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.known_values import KnownValues

BILLING: Final = "x-anthropic-billing-header"
"""A text of Claude Code's that begins so differs with every request. vLLM leaves it out."""
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_PROBE: Final[list[Json]] = [{"role": "user", "content": "Hi"}]
_MIXED_ROLES: Final[list[Json]] = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


class MessagesForm:
    """The conversion for one model."""

    def __init__(self, templates: Iterable[ChatTemplate]) -> None:
        """`templates`: the usual one, and that for requests with tools where there is one."""
        self._templates: Final = tuple(templates)
        self._merges_system: bool | None = None
        self._without_thinking: str | None = None

    def read_body(self, field: Field, known: KnownValues) -> Json:
        """The fields of the chat. `known`: results of the conversation's earlier requests. Raises NotTokenized for a
        body that an engine refuses, or whose form isn't known."""
        messages = _items(field("messages"))
        made = known.messages.map_inputs(messages, lambda message: _as_chat(object_at(message, "messages")))
        # A message of the system may change the tools without being one of the chat.
        of_system = [cast("Json", each) for each in messages if cast("Json", each).get("role") == "system"]
        merges = bool(of_system) and self._merge_system()
        if merges:
            texts = _system_texts(field("system")) + [text for each in of_system for text in _texts_of_system(each)]
            chat = _as_first(texts)
        else:
            chat = [*known.first.map_input(field("system"), lambda given: _as_first(_system_texts(given)))]
        for each in made:
            chat += each if not merges or not each or each[0]["role"] != "system" else ()
        return {
            "messages": chat,
            "tools": _tools(field("tools"), of_system)
            if of_system
            else known.tools.map_input(field("tools"), lambda given: _tools(given, [])),
            "reasoning_effort": self._effort(field("thinking"), field("output_config")),
            "chat_template_kwargs": field("chat_template_kwargs"),
        }

    def _effort(self, thinking: object, output: object) -> str | None:
        kind = cast("Json", thinking).get("type") if isinstance(thinking, dict) else None
        if kind == "disabled":
            if self._without_thinking is None:
                self._without_thinking = self._probe_effort()
            return self._without_thinking
        effort = cast("Json", output).get("effort") if isinstance(output, dict) else None
        return effort if isinstance(effort, str) else None

    def _merge_system(self) -> bool:
        """Whether the template refuses system messages that aren't the first: they become part of it then."""
        if self._merges_system is None:
            self._merges_system = not all(_renders(template, _MIXED_ROLES) for template in self._templates)
        return self._merges_system

    def _probe_effort(self) -> Literal["none", "low"]:
        """`low` where the template refuses `none`, or makes the same prompt of it as of another effort."""
        template = self._templates[0]
        without = _probed(template, "none")
        if without is None or any(_probed(template, effort) == without for effort in _EFFORTS):
            return "low"
        return "none"


def _renders(template: ChatTemplate, messages: list[Json]) -> bool:
    try:
        template.render(messages, add_generation_prompt=False, variables={})
    except NotTokenized:
        return False
    return True


def _probed(template: ChatTemplate, effort: str) -> str | None:
    variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    content: object = [{"type": "text", "text": "Hi"}] if template.content_format == "openai" else "Hi"
    try:
        return template.render([{**_PROBE[0], "content": content}], variables=variables)
    except NotTokenized:
        return None


def _as_first(texts: list[str]) -> list[Json]:
    """The texts of the system as the chat's first message; empty without any."""
    return [{"role": "system", "content": "".join(texts)}] if texts else []


def _system_texts(system: object) -> list[str]:
    if isinstance(system, str):
        return [system] if system else []
    return _texts(_items(system), "system")


def _texts_of_system(message: Json) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [] if content.startswith(BILLING) or not content else [content]
    return _texts(_items(content), "content")


def _texts(blocks: list[object], where: str) -> list[str]:
    texts: list[str] = []
    for block in blocks:
        fields = object_at(block, where)
        text = fields.get("text")
        if fields.get("type") == "text" and isinstance(text, str) and text and not text.startswith(BILLING):
            texts.append(text)
    return texts


def _as_chat(message: Json) -> list[Json]:
    """One message as those of a chat."""
    chat: list[Json] = []
    if message.get("role") != "system":
        _add_message(message, chat)
    elif text := "".join(_texts_of_system(message)):
        chat.append({"role": "system", "content": text})
    return chat


def _add_message(message: Json, chat: list[Json]) -> None:
    content, role = message.get("content"), message.get("role")
    if isinstance(content, str):
        chat.append({"role": role, "content": content})
        return
    parts: list[Json] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    for each in _items(content):
        block = object_at(each, "content")
        match block.get("type"):
            case "text":
                if block.get("text"):
                    parts.append({"type": "text", "text": block["text"]})
            case "tool_use":
                function: Json = {"arguments": block.get("input") or {}, "name": block.get("name") or ""}
                calls.append({"id": block.get("id") or "", "function": function, "type": "function"})
            case "tool_result" if role == "user":
                chat.append(_result(block))
            case "tool_result":
                parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
            case "thinking":
                if isinstance(block.get("thinking"), str):
                    thoughts.append(cast("str", block["thinking"]))
            case "redacted_thinking" | "tool_reference":
                pass
            case "image":
                raise NotTokenized("media", "the prompt isn't text alone")
            case _:
                raise NotTokenized("shape", "content: a block of an unknown type")
    made: Json = {"role": role}
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if parts:
        made["content"] = parts[0]["text"] if len(parts) == 1 else parts
    if role != "user" or parts:
        chat.append(made)


def _result(block: Json) -> Json:
    content = block.get("content")
    texts: list[str] = []
    if isinstance(content, str):
        texts.append(content)
    for part in _items(content):
        if not isinstance(part, dict):
            continue
        fields = cast("Json", part)
        if fields.get("type") == "text":
            texts.append(str(fields.get("text", "")))
        elif fields.get("type") in ("image", "tool_reference"):
            raise NotTokenized("media", "the result of a tool isn't text alone")
    return {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": "\n".join(texts)}


def _tools(given: object, messages: list[Json]) -> list[Json] | None:
    """The tools in effect at the end of the conversation: messages of the system may add and remove some."""
    tools = {str(tool.get("name")): tool for tool in (object_at(each, "tools") for each in _items(given))}
    removed: set[str] = set()
    for message in messages:
        if message.get("role") != "system" or isinstance(message.get("content"), str):
            continue
        for block in (object_at(each, "content") for each in _items(message.get("content"))):
            if block.get("type") in ("tool_addition", "tool_removal"):
                _change_tools(tools, removed, block)
    left = [tool for name, tool in tools.items() if name not in removed]
    return [_tool(tool) for tool in left] or None


def _change_tools(tools: dict[str, Json], removed: set[str], block: Json) -> None:
    change = object_at(block.get("tool"), "content.tool")
    added = block.get("type") == "tool_addition"
    if added and change.get("type") == "tool_definition":
        definition = object_at(change.get("definition"), "content.tool.definition")
        name = str(definition.get("name"))
        tools[name] = definition
    else:
        name = str(change.get("name"))
        if name not in tools:
            raise NotTokenized("shape", "content.tool: it names no tool of the request")
        if added:
            tools[name] = {key: value for key, value in tools[name].items() if key != "defer_loading"}
    if added:
        removed.discard(name)
    else:
        removed.add(name)


def _tool(tool: Json) -> Json:
    schema = object_at(tool.get("input_schema"), "tools.input_schema")
    if "type" not in schema:
        schema = {**schema, "type": "object"}
    function: Json = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    for name in ("strict", "defer_loading"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _items(value: object) -> list[object]:
    return list_or_none(value) or []
