"""OpenAI's chat completion requests, read into values that other APIs have words for.

What isn't known here is refused, so that nothing that the client asked for is silently left out.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, NoReturn

import orjson
from pydantic import JsonValue

from pointsman_core.refusal import Refusal

HINTS: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Fields that change no answer: left out where a provider has none of them."""
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tools": ([],),
    "verbosity": ("medium",),
}
"""Values that ask for nothing."""
_READ: Final = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    }
)

Fields = Mapping[str, JsonValue]


class Text(NamedTuple):
    """Words."""

    text: str


class Image(NamedTuple):
    """A picture: its bytes in base64 with their media type, or where it is."""

    media_type: str | None
    data: str
    """Base64, or a URL when there is no media type."""


class ToolCall(NamedTuple):
    """The model's wish to have a tool called."""

    id: str
    name: str
    arguments: Fields


class ToolResult(NamedTuple):
    """What a tool answered."""

    id: str
    parts: tuple[Text | Image, ...]


Part = Text | Image | ToolCall | ToolResult


class Turn(NamedTuple):
    """What one side said; neighbouring turns are of different sides."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


class Tool(NamedTuple):
    """A function that the model may ask for."""

    name: str
    description: str | None
    schema: Fields
    strict: bool | None


class Chat(NamedTuple):
    """A request."""

    system: tuple[str, ...]
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    tool_choice: str | None
    """`auto`, `none`, `required`, or `=` and the name of a function."""
    parallel_tool_calls: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    schema: tuple[str, Fields] | None
    """Name and JSON schema that the answer has to fit."""
    effort: str | None
    user: str | None
    extra: Fields
    """Fields of the engine's own that `extras` allowed."""


def read_chat(body: bytes, who: str, extras: Iterable[str] = ()) -> Chat:
    """Read a body that preprocessing has checked. Raises Refusal 400 with the field that `who` has no word for."""
    document: JsonValue = orjson.loads(body)
    if not isinstance(document, dict):
        raise Refusal(400, "The body must be a JSON object.")
    fields = {name: value for name, value in document.items() if value is not None}
    extra: dict[str, JsonValue] = {}
    for name, value in fields.items():
        if name in _READ or name in HINTS or value in _NEUTRAL.get(name, ()):
            continue
        if name not in extras:
            refuse(name, who)
        extra[name] = value
    system, turns = _turns(fields, who)
    options = fields.get("stream_options")
    temperature, top_p = _number(fields, "temperature", who), _number(fields, "top_p", who)
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        refuse("max_tokens", who)
    effort, user = fields.get("reasoning_effort"), fields.get("safety_identifier", fields.get("user"))
    return Chat(
        system=tuple(system),
        turns=tuple(turns),
        tools=tuple(_tools(fields, who)),
        tool_choice=_tool_choice(fields, who),
        parallel_tool_calls=fields.get("parallel_tool_calls") is not False,
        max_tokens=limit,
        temperature=temperature,
        top_p=top_p,
        stop=_stop(fields, who),
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        schema=_schema(fields, who),
        effort=effort if isinstance(effort, str) else None,
        user=user if isinstance(user, str) else None,
        extra=extra,
    )


def refuse(field: str, who: str, why: str = "") -> NoReturn:
    """End the request: `who` has no word for `field`."""
    reason = f" {why}" if why else ""
    raise Refusal(
        400,
        f"`{field}` can't be said to {who}, which serves this model.{reason} Leave it out, or name another model.",
        code="unsupported_parameter",
        param=field,
    )


def _turns(fields: Fields, who: str) -> tuple[list[str], list[Turn]]:
    system: list[str] = []
    turns: list[Turn] = []
    messages = fields.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            refuse(where, who)
        match message.get("role"):
            case "system" | "developer":
                system += [part.text for part in _texts(message, where, who)]
            case "user":
                _add(turns, Turn("user", tuple(_parts(message.get("content"), where, who))))
            case "tool":
                parts = tuple(_parts(message.get("content"), where, who))
                _add(turns, Turn("user", (ToolResult(str(message.get("tool_call_id", "")), parts),)))
            case "assistant":
                _add(turns, Turn("assistant", (*_texts(message, where, who), *_tool_calls(message, where, who))))
            case _:
                refuse(f"{where}.role", who)
    return system, turns


def _add(turns: list[Turn], turn: Turn) -> None:
    if not turn.parts:
        return
    if turns and turns[-1].role == turn.role:
        turns[-1] = Turn(turn.role, (*turns[-1].parts, *turn.parts))
    else:
        turns.append(turn)


def _texts(said: Fields, where: str, who: str) -> list[Text]:
    parts = _parts(said.get("content"), where, who)
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts):
        refuse(f"{where}.content", who, "Only text is understood there.")
    return texts


def _parts(content: JsonValue, where: str, who: str) -> list[Text | Image]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[Text | Image] = []
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        place = f"{where}.content[{number}]"
        if not isinstance(part, dict):
            refuse(place, who)
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                if text:
                    found.append(Text(text))
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                found.append(_image(url, place, who))
            case _:
                refuse(place, who, f"Its type is {str(part.get('type'))[:50]!r}.")
    return found


def _image(url: str, place: str, who: str) -> Image:
    if url.startswith(("https://", "http://")):
        return Image(None, url)
    head, comma, data = url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if not (head.startswith("data:image/") and comma and encoding == "base64"):
        refuse(place, who, "A picture is a URL or `data:image/…;base64,…`.")
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        refuse(place, who, "Its base64 is broken.")
    return Image(media_type, data)


def _tool_calls(said: Fields, where: str, who: str) -> list[ToolCall]:
    if said.get("function_call") is not None:
        refuse(f"{where}.function_call", who, "`tool_calls` took its place.")
    calls = said.get("tool_calls")
    found: list[ToolCall] = []
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        place = f"{where}.tool_calls[{number}]"
        match call:
            case {"id": str(identity), "function": {"name": str(name), "arguments": str(text)}}:
                try:
                    arguments: JsonValue = orjson.loads(text or "{}")
                except orjson.JSONDecodeError:
                    arguments = None
                if not isinstance(arguments, dict):
                    refuse(f"{place}.function.arguments", who, "They are no JSON object.")
                found.append(ToolCall(identity, name, arguments))
            case _:
                refuse(place, who)
    return found


def _tools(fields: Fields, who: str) -> list[Tool]:
    tools = fields.get("tools")
    found: list[Tool] = []
    for number, tool in enumerate(tools if isinstance(tools, list) else []):
        match tool:
            case {"type": "function", "function": {"name": str(name), **rest}}:
                schema, description, strict = rest.get("parameters"), rest.get("description"), rest.get("strict")
                found.append(
                    Tool(
                        name,
                        description if isinstance(description, str) and description else None,
                        schema if isinstance(schema, dict) else {"type": "object", "properties": {}},
                        strict if isinstance(strict, bool) else None,
                    )
                )
            case _:
                refuse(f"tools[{number}]", who)
    return found


def _tool_choice(fields: Fields, who: str) -> str | None:
    match fields.get("tool_choice"):
        case None:
            return None
        case str(choice) if choice in ("auto", "none", "required"):
            return choice
        case {"type": "function", "function": {"name": str(name)}}:
            return f"={name}"
        case _:
            refuse("tool_choice", who)


def _stop(fields: Fields, who: str) -> tuple[str, ...]:
    stop = fields.get("stop")
    if stop is None:
        return ()
    words = stop if isinstance(stop, list) else [stop]
    found = tuple(word for word in words if isinstance(word, str))
    if len(found) < len(words):
        refuse("stop", who)
    return found


def _schema(fields: Fields, who: str) -> tuple[str, Fields] | None:
    match fields.get("response_format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_schema", "json_schema": {"name": str(name), "schema": dict(schema)}}:
            return name, schema
        case _:
            refuse("response_format", who, "`json_schema` is understood.")


def _number(fields: Fields, name: str, who: str) -> float | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
        refuse(name, who)
    return value
