"""OpenAI's `/v1/responses` in the form of a chat, as vLLM turns one into the other before it renders a template.

Source: vLLM 0.32 `entrypoints/openai/responses/utils.py` (`construct_input_messages`, `construct_tool_dicts`),
`protocol.py` (`build_chat_params`) and `tool_parsers/utils.py` (`get_function_tools`).
"""

from bisect import bisect_left
from typing import Final, cast

from pointsman_models.tokenization.body_values import Field, Json, count_same, list_or_none, object_at
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.known_values import KnownValues

_ELSEWHERE: Final = ("previous_response_id", "previous_input_messages", "conversation", "prompt")
"""Fields that stand for turns which the body doesn't have."""
_OPEN: Final = ("in_progress", "incomplete")
_CUSTOM_TOOL: Final[Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
_BETWEEN_NAMES: Final = "__"
"""Between the name of a tool's namespace and its own."""


def read_responses_body(field: Field, known: KnownValues) -> Json:
    """The fields of the chat. Raises NotTokenized for a body that an engine refuses, or whose turns the engine has."""
    for name in _ELSEWHERE:
        if field(name) is not None:
            raise NotTokenized("stored", f"{name}: the engine has the turns before")
    given = field("input")
    chat = [*known.first.map_input(field("instructions"), _as_first)]
    goes_on = False
    listed = list_or_none(given)
    if listed is not None:
        items = [object_at(each, "input") for each in listed]
        # Only items are joined; the instructions are the first message in any case.
        chat += _as_chat(items, known)
        last = items[-1] if items else {}
        goes_on = last.get("type", "message") in ("message", "reasoning") and last.get("status") in _OPEN
    else:
        chat.append({"role": "user", "content": given})
    reasoning = field("reasoning")
    return {
        "messages": chat,
        "tools": known.tools.map_input(field("tools"), _tools),
        "reasoning_effort": cast("Json", reasoning).get("effort") if isinstance(reasoning, dict) else None,
        "chat_template_kwargs": field("chat_template_kwargs"),
        "add_generation_prompt": not goes_on,
        "continue_final_message": goes_on,
    }


def _as_first(instructions: object) -> list[Json]:
    return [{"role": "system", "content": instructions}] if instructions else []


def _as_chat(items: list[Json], known: KnownValues) -> list[Json]:
    """Items as messages. Later items change only the last message: those before it are known again."""
    former, chat, counts = known.joined
    same = count_same(former, items)
    # The item that began the last message which they have in common.
    begin = bisect_left(counts, counts[same - 1]) if same else 0
    counts = counts[:begin]
    chat = chat[: counts[-1] if counts else 0]
    for item in items[begin:]:
        _add_item(item, chat)
        counts.append(len(chat))
    known.joined = items, chat, counts
    return chat


def _add_item(item: Json, chat: list[Json]) -> None:
    kind = item.get("type")
    last = chat[-1] if chat and chat[-1].get("role") == "assistant" else None
    if kind == "function_call":
        name, space = item.get("name"), item.get("namespace")
        _add_call(item, f"{space}{_BETWEEN_NAMES}{name}" if space else name, item.get("arguments"), chat)
    elif kind == "custom_tool_call":
        _add_call(item, item.get("name"), {"input": item.get("input") or ""}, chat)
    elif kind == "reasoning":
        thought = _thought(item)
        if last is not None and last.get("reasoning") is None:
            last["reasoning"] = thought
        else:
            chat.append({"role": "assistant", "reasoning": thought})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        chat.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif item.get("role") == "assistant":
        text = _first_text(item.get("content"))
        if last is not None and last.get("content") is None:
            last["content"] = text
        else:
            chat.append({"role": "assistant", "content": text})
    elif "role" in item:
        chat.append(item)
    else:
        raise NotTokenized("shape", "input: an item of an unknown type")


def _add_call(item: Json, name: object, arguments: object, chat: list[Json]) -> None:
    call: Json = {
        "id": item.get("call_id"), "function": {"name": name, "arguments": arguments}, "type": "function",
    }  # fmt: skip
    last = chat[-1] if chat else {}
    if last.get("role") != "assistant":
        chat.append({"role": "assistant", "tool_calls": [call]})
    elif "tool_calls" in last:
        cast("list[Json]", last["tool_calls"]).append(call)
    else:
        last["tool_calls"] = [call]


def _thought(item: Json) -> object:
    if item.get("encrypted_content"):
        raise NotTokenized("shape", "input: encrypted reasoning")
    for name in ("content", "summary"):
        parts = list_or_none(item.get(name))
        if parts:
            return object_at(parts[0], f"input.{name}").get("text")
    return ""


def _first_text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = list_or_none(content)
    text = object_at(parts[0], "input.content").get("text") if parts else None
    if not isinstance(text, str):
        raise NotTokenized("shape", "input.content: an answer without text")
    return text


def _tools(given: object) -> list[Json] | None:
    listed = list_or_none(given)
    if not listed:
        return None
    made: list[Json] = []
    for each in listed:
        tool = object_at(each, "tools")
        kind = tool.get("type")
        if kind == "function":
            made.append(_function(tool, tool.get("name")))
        elif kind == "custom":
            made.append(_function({**tool, "parameters": _CUSTOM_TOOL, "strict": None}, tool.get("name")))
        elif kind == "namespace":
            for one in list_or_none(tool.get("tools")) or []:
                function = object_at(one, "tools.tools")
                if function.get("type") == "function":
                    made.append(_function(function, f"{tool.get('name')}{_BETWEEN_NAMES}{function.get('name')}"))
    return made


def _function(tool: Json, name: object) -> Json:
    function: Json = {"name": name, "description": tool.get("description"), "parameters": tool.get("parameters")}
    for option in ("strict", "defer_loading"):
        if tool.get(option) is not None:
            function[option] = tool[option]
    return {"type": "function", "function": function}
