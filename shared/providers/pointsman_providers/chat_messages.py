"""Reads the messages of OpenAI's chats into turns of user and assistant.

The messages may be the answers of any model, sent back: members that only describe an answer (its reasoning without a
signature, annotations, `token_ids`) are left out, since the next model has no use for them.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import orjson
from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_providers.thoughts import Thought, read_thoughts

Fields = Mapping[str, JsonValue]


class CacheMark(NamedTuple):
    """The end of a prefix that the provider should cache (Anthropic's `cache_control`)."""

    ttl: Literal["5m", "1h"] | None
    """How long; None: the provider's default."""


class ChatText(NamedTuple):
    """A text that isn't blank."""

    text: str
    cache: CacheMark | None = None


class Image(NamedTuple):
    """An image: its bytes in base64 with their media type, or its URL."""

    media_type: str | None
    data: str
    """Base64, or a URL when there is no media type."""
    cache: CacheMark | None = None


class ToolCall(NamedTuple):
    """A tool call by the model."""

    id: str
    name: str
    arguments: Fields
    cache: CacheMark | None = None


class ToolResult(NamedTuple):
    """The result of a tool call."""

    id: str
    parts: tuple[ChatText | Image, ...]
    cache: CacheMark | None = None


Part = ChatText | Image | ToolCall | ToolResult | Thought
P = TypeVar("P", bound=ChatText | Image | ToolCall)


class ChatTurn(NamedTuple):
    """One turn, of the user or the assistant."""

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


def read_turns(messages: JsonValue, who: str, model: str) -> tuple[list[ChatText], list[ChatTurn]]:
    """The texts of system messages, and the turns, which need not alternate. `model` is the provider's name, whose
    signed reasoning is kept. Raises Refusal 400 with the field that `who` doesn't support."""
    system: list[ChatText] = []
    turns: list[ChatTurn] = []
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise unsayable(where, who)
        mark = cache_mark(message, where, who)
        match message.get("role"):
            case "system" | "developer":
                system += _marked(_texts(message, where, who), mark)
            case "user":
                turns.append(ChatTurn("user", tuple(_marked(_parts(message.get("content"), where, who), mark))))
            case "tool":
                turns.append(ChatTurn("user", (_result(message, mark, where, who),)))
            case "assistant":
                said = _marked([*_texts(message, where, who), *_tool_calls(message, where, who)], mark)
                thoughts = read_thoughts(message.get("reasoning_details"), model)
                turns.append(ChatTurn("assistant", (*thoughts, *said)))
            case _:
                raise unsayable(f"{where}.role", who)
    return system, turns


def cache_mark(marked: Fields, where: str, who: str) -> CacheMark | None:
    """The mark of a message, part or tool. Raises Refusal 400 for one that isn't known."""
    match marked.get("cache_control"):
        case None:
            return None
        case {"type": "ephemeral", "ttl": "5m" | "1h" as ttl}:
            return CacheMark(ttl)
        case {"type": "ephemeral", **rest} if rest.get("ttl") is None:
            return CacheMark(None)
        case _:
            raise unsayable(
                f"{where}.cache_control", who, 'It must be `{"type": "ephemeral"}`, with a `ttl` or without.'
            )


def _marked(parts: Sequence[P], mark: CacheMark | None) -> Sequence[P]:
    """The parts of a message with the message's own mark, which is that of the last one."""
    return parts if mark is None or not parts else (*parts[:-1], parts[-1]._replace(cache=mark))


def _result(message: Fields, mark: CacheMark | None, where: str, who: str) -> ToolResult:
    parts = _parts(message.get("content"), where, who)
    # Bedrock has no marks within results.
    mark = mark or next((part.cache for part in parts if part.cache is not None), None)
    identity = message.get("tool_call_id")
    return ToolResult(
        identity if isinstance(identity, str) else "", tuple(part._replace(cache=None) for part in parts), mark
    )


def _texts(said: Fields, where: str, who: str) -> list[ChatText]:
    parts = _parts(said.get("content"), where, who)
    texts = [part for part in parts if isinstance(part, ChatText)]
    if len(texts) < len(parts):
        raise unsayable(f"{where}.content", who, "It must be text only.")
    refusal = said.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        texts.append(ChatText(refusal))
    return texts


def _parts(content: JsonValue, where: str, who: str) -> list[ChatText | Image]:
    """The parts that say something: Anthropic and Bedrock refuse blank texts."""
    if content is None:
        return []
    if isinstance(content, str):
        return [ChatText(content)] if content.strip() else []
    found: list[ChatText | Image] = []
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        place = f"{where}.content[{number}]"
        if not isinstance(part, dict):
            raise unsayable(place, who)
        mark = cache_mark(part, place, who)
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                if text.strip():
                    found.append(ChatText(text, mark))
                elif mark is not None and found:
                    found[-1] = found[-1]._replace(cache=mark)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                found.append(_image(url, place, who)._replace(cache=mark))
            case {"type": "thinking" | "reasoning"}:
                pass  # Mistral's form of reasoning, which has no signature
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
    return Image("image/jpeg" if media_type == "image/jpg" else media_type, data)


def _tool_calls(said: Fields, where: str, who: str) -> list[ToolCall]:
    if said.get("function_call") is not None:
        raise unsayable(f"{where}.function_call", who, "Send `tool_calls` instead.")
    calls = said.get("tool_calls")
    found: list[ToolCall] = []
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        place = f"{where}.tool_calls[{number}]"
        match call:
            case {"function": {"name": str(name), **rest}}:
                arguments = _arguments(rest.get("arguments"))
            case {"type": "custom", "custom": {"name": str(name), "input": str(text)}}:
                arguments = {"input": text}
            case _:
                raise unsayable(place, who)
        identity = call.get("id")
        mark = cache_mark(call, place, who)
        found.append(ToolCall(identity if isinstance(identity, str) else "", name, arguments, mark))
    return found


def _arguments(given: JsonValue) -> Fields:
    """A call's arguments as an object. A model may have written any text there, which the history then has."""
    value: JsonValue = given
    for _ in range(2):  # some models write JSON in a JSON string
        if not isinstance(value, str) or not value.strip():
            break
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {"arguments": given}
    if not isinstance(value, dict):
        return {} if value in (None, "", []) else {"arguments": given}
    try:
        # orjson reads deeper than it writes, and the request is around them.
        orjson.dumps([[[[[[[[value]]]]]]]])
    except orjson.JSONEncodeError:
        return {"arguments": given if isinstance(given, str) else "(nested too deeply)"}
    return value
