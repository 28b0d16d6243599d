"""Reads the messages of OpenAI's chats into alternating turns of user and assistant."""

import base64
import binascii
from collections.abc import Mapping
from typing import Literal, NamedTuple

import orjson
from pydantic import JsonValue

from pointsman_core.refusal import Refusal

Fields = Mapping[str, JsonValue]


class ChatText(NamedTuple):
    """A text."""

    text: str


class Image(NamedTuple):
    """An image: its bytes in base64 with their media type, or its URL."""

    media_type: str | None
    data: str
    """Base64, or a URL when there is no media type."""


class ToolCall(NamedTuple):
    """A tool call by the model."""

    id: str
    name: str
    arguments: Fields


class ToolResult(NamedTuple):
    """The result of a tool call."""

    id: str
    parts: tuple[ChatText | Image, ...]


Part = ChatText | Image | ToolCall | ToolResult


class ChatTurn(NamedTuple):
    """One turn, of the user or the assistant; neighbouring turns differ in that."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


def unsayable(field: str, who: str, why: str = "") -> Refusal:
    """400: the provider `who` doesn't support `field`."""
    reason = f" {why}" if why else ""
    return Refusal(
        400,
        f"`{field}` isn't supported by {who}, which serves this model.{reason} Leave it out, or name another model.",
        code="unsupported_parameter",
        param=field,
    )


def read_turns(messages: JsonValue, who: str) -> tuple[list[str], list[ChatTurn]]:
    """The texts of system messages, and the turns. Raises Refusal 400 with the field that `who` doesn't support."""
    system: list[str] = []
    turns: list[ChatTurn] = []
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise unsayable(where, who)
        match message.get("role"):
            case "system" | "developer":
                system += [part.text for part in _texts(message, where, who)]
            case "user":
                _add(turns, ChatTurn("user", tuple(_parts(message.get("content"), where, who))))
            case "tool":
                parts = tuple(_parts(message.get("content"), where, who))
                _add(turns, ChatTurn("user", (ToolResult(str(message.get("tool_call_id", "")), parts),)))
            case "assistant":
                _add(turns, ChatTurn("assistant", (*_texts(message, where, who), *_tool_calls(message, where, who))))
            case _:
                raise unsayable(f"{where}.role", who)
    return system, turns


def _add(turns: list[ChatTurn], turn: ChatTurn) -> None:
    if not turn.parts:
        return
    if turns and turns[-1].role == turn.role:
        turns[-1] = ChatTurn(turn.role, (*turns[-1].parts, *turn.parts))
    else:
        turns.append(turn)


def _texts(said: Fields, where: str, who: str) -> list[ChatText]:
    parts = _parts(said.get("content"), where, who)
    texts = [part for part in parts if isinstance(part, ChatText)]
    if len(texts) < len(parts):
        raise unsayable(f"{where}.content", who, "It must be text only.")
    return texts


def _parts(content: JsonValue, where: str, who: str) -> list[ChatText | Image]:
    if content is None:
        return []
    if isinstance(content, str):
        return [ChatText(content)] if content else []
    found: list[ChatText | Image] = []
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        place = f"{where}.content[{number}]"
        if not isinstance(part, dict):
            raise unsayable(place, who)
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                if text:
                    found.append(ChatText(text))
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                found.append(_image(url, place, who))
            case _:
                raise unsayable(place, who, f"Its type is {str(part.get('type'))[:50]!r}.")
    return found


def _image(url: str, place: str, who: str) -> Image:
    if url.startswith(("https://", "http://")):
        return Image(None, url)
    head, comma, data = url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if not (head.startswith("data:image/") and comma and encoding == "base64"):
        raise unsayable(place, who, "An image must be a URL or `data:image/…;base64,…`.")
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        raise unsayable(place, who, "Its base64 is invalid.") from None
    return Image(media_type, data)


def _tool_calls(said: Fields, where: str, who: str) -> list[ToolCall]:
    if said.get("function_call") is not None:
        raise unsayable(f"{where}.function_call", who, "Send `tool_calls` instead.")
    calls = said.get("tool_calls")
    found: list[ToolCall] = []
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        place = f"{where}.tool_calls[{number}]"
        match call:
            case {"id": str(identity), "function": {"name": str(name), "arguments": str(text)}}:
                try:
                    arguments: JsonValue = orjson.loads(text or "{}")
                    # orjson reads deeper than it writes, and the request is around them.
                    orjson.dumps([[[[[[[[arguments]]]]]]]])
                except orjson.JSONDecodeError:
                    arguments = None
                except orjson.JSONEncodeError:
                    raise unsayable(f"{place}.function.arguments", who, "They nest too deeply.") from None
                if not isinstance(arguments, dict):
                    raise unsayable(f"{place}.function.arguments", who, "They must be a JSON object.")
                found.append(ToolCall(identity, name, arguments))
            case _:
                raise unsayable(place, who)
    return found
