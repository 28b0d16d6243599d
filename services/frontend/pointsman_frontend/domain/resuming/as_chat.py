"""Requests of `/v1/messages` and `/v1/responses` as the chats that engines make of them: their answers are continued as
those of chats.

The conversions are those of vLLM (`entrypoints/anthropic/serving.py`, `entrypoints/openai/responses/utils.py`): from
another chat another prompt would follow. A request with parts that have no equivalent isn't continued.
"""

import json
from collections.abc import Mapping
from typing import Final, cast

from pointsman_apis.api import Api
from pointsman_apis.messages import MESSAGES
from pointsman_apis.responses import RESPONSES
from pointsman_apis.texts import Answer, objects
from pointsman_frontend.domain.resuming.question import Body, CantContinue

TRANSLATED: Final = (MESSAGES, RESPONSES)
"""APIs whose streams are continued as chats."""
_BILLING: Final = "x-anthropic-billing-header"
"""Begins a system text of Claude Code that engines leave out."""
_SAMPLING: Final = ("temperature", "top_p", "top_k", "cache_salt", "chat_template_kwargs")
_MESSAGES: Final[Mapping[str, str]] = {
    **{name: name for name in _SAMPLING},
    "model": "model",
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
}
"""Members that chats have too, and their names there."""
_RESPONSES: Final[Mapping[str, str]] = {
    **{name: name for name in _SAMPLING},
    **{
        name: name
        for name in (
            *("model", "min_p", "stop", "stop_token_ids", "seed", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "logit_bias"),
            *("priority", "session_id", "user", "parallel_tool_calls"),
        )
    },
    "max_output_tokens": "max_tokens",
}
_READ: Final = {
    MESSAGES.name: frozenset({"messages", "system", "tools", "tool_choice", "thinking", "output_config", "stream"}),
    RESPONSES.name: frozenset(
        {"input", "instructions", "tools", "tool_choice", "reasoning", "text", "stream", "truncation", "include"}
    ),
}
_WITHOUT_EFFECT: Final = frozenset((
    "metadata", "service_tier", "store", "prompt_cache_key", "safety_identifier", "max_tool_calls", "request_id",
    "stream_options", "context_management", "betas", "watermarking",
))  # fmt: skip
"""Members that change no token of an answer that is text."""
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "background": (False,),
    "include_reasoning": (True,),
    "top_logprobs": (0,),
    "enable_response_messages": (False,),
    "truncation": ("disabled",),
    "include": ([], ["reasoning.encrypted_content"]),
}
"""Members that change nothing if they have one of these values."""


def chat_of(api: Api, body: Body) -> Body:
    """The chat whose answer the answer to this request is. Raises CantContinue."""
    names = _MESSAGES if api is MESSAGES else _RESPONSES
    for name, value in body.items():
        if value is None or name in names or name in _WITHOUT_EFFECT or value in _NEUTRAL.get(name, ()):
            continue
        if name in _NEUTRAL or name not in _READ[api.name]:
            raise CantContinue("unknown_field")
    chat: Body = {other: body[name] for name, other in names.items() if body.get(name) is not None}
    chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if api is MESSAGES:
        _add_messages(chat, body)
    else:
        _add_input(chat, body)
    return chat


def _add_messages(chat: Body, body: Body) -> None:
    messages: list[Answer] = []
    system = _system_text(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in objects(body, "messages"):
        messages += _messages_of(message)
    chat["messages"] = messages
    output = _object(body.get("output_config"))
    if output.get("format"):
        raise CantContinue("structured_output")
    if output.get("effort") is not None:
        chat["reasoning_effort"] = output["effort"]
    thinking = _object(body.get("thinking"))
    if thinking.get("type") == "disabled":
        chat["reasoning_effort"] = "none"
    elif thinking.get("type") == "enabled" and isinstance(thinking.get("budget_tokens"), int):
        chat["thinking_token_budget"] = thinking["budget_tokens"]
    choice = _object(body.get("tool_choice"))
    if choice:
        named: Answer = {"type": "function", "function": {"name": choice.get("name")}}
        chosen = {"auto": "auto", "any": "required", "none": "none", "tool": named}
        chat["tool_choice"] = chosen.get(str(choice.get("type")), "auto")
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    if body.get("tools"):
        chat["tools"] = [_tool(tool, "input_schema") for tool in objects(body, "tools")]


def _system_text(given: object) -> str:
    if isinstance(given, str):
        return given
    blocks = cast("list[object]", given) if isinstance(given, list) else []
    texts = (_object(block).get("text") for block in blocks)
    return "".join(text for text in texts if isinstance(text, str) and not text.startswith(_BILLING))


def _messages_of(message: Answer) -> list[Answer]:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        text = "" if isinstance(content, str) and content.startswith(_BILLING) else _system_text(content)
        return [{"role": role, "content": text}] if text else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    made: Answer = {"role": role}
    results: list[Answer] = []
    parts: list[Answer] = []
    calls: list[Answer] = []
    thoughts = ""
    for block in objects(message, "content"):
        match block:
            case {"type": "text", "text": str(text)}:
                if text:
                    parts.append({"type": "text", "text": text})
            case {"type": "image"}:
                parts.append(_image(_object(block.get("source"))))
            case {"type": "thinking", "thinking": str(text)}:
                thoughts += text
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str(identity), "name": str(name)}:
                # Spaced as engines write it: other spaces make another prompt.
                calls.append(_call(identity, name, json.dumps(block.get("input") or {})))
            case {"type": "tool_result"} if role == "user":
                results += _results_of(block)
            case _:
                raise CantContinue("media")
    if thoughts:
        made["reasoning"] = thoughts
    if calls:
        made["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        made["content"] = parts[0]["text"]
    elif parts:
        made["content"] = parts
    return results if role == "user" and not parts else [*results, made]


def _results_of(block: Answer) -> list[Answer]:
    """What a tool returned: its text, and its images as the user's."""
    text, images = block.get("content"), list[Answer]()
    if not isinstance(text, str):
        texts: list[str] = []
        for part in objects(block, "content"):
            match part:
                case {"type": "text", "text": str(each)}:
                    texts.append(each)
                case {"type": "image"}:
                    images.append(_image(_object(part.get("source"))))
                case _:
                    raise CantContinue("media")
        text = "\n".join(texts)
    made: list[Answer] = [{"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": text}]
    return [*made, {"role": "user", "content": images}] if images else made


def _image(source: Answer) -> Answer:
    url = source.get("url") if source.get("type") == "url" else None
    if url is None:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(identity: object, name: object, arguments: object) -> Answer:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(tool: Answer, schema: str) -> Answer:
    """A function that the model may call. A tool that the engine runs itself can't be continued."""
    if tool.get("type") not in (None, "custom" if schema == "input_schema" else "function") or schema not in tool:
        raise CantContinue("tools")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool[schema]}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _add_input(chat: Body, body: Body) -> None:
    messages: list[Answer] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    items = objects(body, "input")
    for item in items:
        _add_item(messages, item)
    if items and items[-1].get("status") in ("in_progress", "incomplete") and messages[-1].get("role") == "assistant":
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    chat["messages"] = messages
    if _object(_object(body.get("text")).get("format")).get("type", "text") != "text":
        raise CantContinue("structured_output")
    effort = _object(body.get("reasoning")).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    if body.get("tools"):
        chat["tools"] = [_tool(tool, "parameters") for tool in objects(body, "tools")]
        choice = body.get("tool_choice")
        if isinstance(choice, dict):
            choice = {"type": "function", "function": {"name": cast("Answer", choice).get("name")}}
        chat["tool_choice"] = choice or "auto"


def _add_item(messages: list[Answer], item: Answer) -> None:
    """One item of the input. Thoughts, text and calls of one turn are items each, and one message of a chat."""
    last = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
    match item:
        case {"type": "function_call"}:
            call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
            if last is None:
                messages.append({"role": "assistant", "tool_calls": [call]})
            else:
                last["tool_calls"] = [*objects(last, "tool_calls"), call]
        case {"type": "function_call_output", "output": str(output)}:
            messages.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
        case {"type": "reasoning"}:
            told = [*objects(item, "content"), *objects(item, "summary")]
            if item.get("encrypted_content") or not told:
                raise CantContinue("prompt")
            _add_to_turn(messages, last, "reasoning", told[0].get("text"))
        case {"role": "assistant", "content": content}:
            if isinstance(content, list):
                content = _object(next(iter(cast("list[object]", content)), None)).get("text")
            if not isinstance(content, str):
                raise CantContinue("prompt")
            _add_to_turn(messages, last, "content", content)
        case {"role": str(role), "content": str(content)}:
            messages.append({"role": role, "content": content})
        case {"role": str(role), "content": list()}:
            messages.append({"role": role, "content": [_part(part) for part in objects(item, "content")]})
        case _:
            raise CantContinue("prompt")


def _add_to_turn(messages: list[Answer], last: Answer | None, name: str, text: object) -> None:
    if last is not None and last.get(name) is None:
        last[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _part(part: Answer) -> Answer:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case _:
            raise CantContinue("media")


def _object(value: object) -> Answer:
    return cast("Answer", value) if isinstance(value, dict) else {}
