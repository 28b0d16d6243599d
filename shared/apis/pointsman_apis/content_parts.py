"""The content of a message: a text, or parts that are texts, images, clips and files."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_apis.fields import (
    OBJECT,
    TEXT,
    TEXT_OR_OBJECT,
    Document,
    Expected,
    check_items,
    empty,
    missing,
    not_a_text,
    wrong_type,
)


class _Payload(NamedTuple):
    """Where a part carries what it is about. It may be null or absent: vLLM knows media by a `uuid` too."""

    name: str
    expected: Expected
    inner: str = ""
    """The field of the payload that holds a text, where the payload is an object."""


_PAYLOADS: Final[Mapping[str, _Payload]] = {
    # OpenAI documents objects with a `url` for chats and texts for responses; engines take both.
    "image_url": _Payload("image_url", TEXT_OR_OBJECT, "url"),
    "input_image": _Payload("image_url", TEXT_OR_OBJECT, "url"),
    "video_url": _Payload("video_url", TEXT_OR_OBJECT, "url"),
    "audio_url": _Payload("audio_url", TEXT_OR_OBJECT, "url"),
    "input_audio": _Payload("input_audio", OBJECT, "data"),
    "file": _Payload("file", OBJECT, "file_data"),
    # Anthropic's.
    "image": _Payload("source", OBJECT),
    "document": _Payload("source", OBJECT),
    "refusal": _Payload("refusal", TEXT),
}
"""By the type of the part."""
MEDIA: Final = {
    "image_url": "vision",
    "image": "vision",
    "input_image": "vision",
    "computer_screenshot": "vision",
    "video_url": "video",
    "video": "video",
    "input_audio": "audio",
    "audio_url": "audio",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
"""Type of a content part that isn't text → what it asks of a model."""
_SPEAKERS: Final = frozenset({"system", "developer", "user", "tool"})
"""Roles whose messages must have content, unless they bring tools. An assistant's message may have none: it called
tools, or reasoned until its tokens ran out. Some chat templates know further roles, which are not checked."""


def check_content(content: JsonValue, where: str, media: list[str]) -> None:
    """A text or an array of parts; parts that aren't text add what they need of a model to `media`.

    Raises Refusal 400 that names the place, which begins with `where`.
    """
    if content is None or type(content) is str:
        return
    if type(content) is not list:
        raise wrong_type(where, "a string or an array of content parts", content)
    for position, part in enumerate(content):
        if type(part) is str:
            continue
        if type(part) is not dict:
            raise wrong_type(f"{where}[{position}]", "an object", part)
        kind = part.get("type")
        if type(kind) is not str:
            raise not_a_text(f"{where}[{position}].type", kind)
        if kind == "text" or kind.endswith("_text"):
            text = part.get("text")
            if type(text) is not str:
                raise not_a_text(f"{where}[{position}].text", text)
            continue
        if kind in _PAYLOADS:
            _check_payload(part, _PAYLOADS[kind], f"{where}[{position}]")
        if kind in MEDIA:
            media.append(MEDIA[kind])
        else:
            returned_media(part.get("content"), media)


def returned_media(given: JsonValue, media: list[str]) -> None:
    """Add to `media` what a tool returned of it: a part, or parts, whose form is left to engines."""
    for part in given if isinstance(given, list) else [given]:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in MEDIA:
            media.append(MEDIA[kind])


def _check_payload(part: Document, payload: _Payload, where: str) -> None:
    value = part.get(payload.name)
    if value is None:
        return
    if type(value) not in payload.expected.types:
        raise wrong_type(f"{where}.{payload.name}", payload.expected.words, value)
    inner = value.get(payload.inner) if isinstance(value, dict) else None
    if inner is not None and type(inner) is not str:
        raise wrong_type(f"{where}.{payload.name}.{payload.inner}", TEXT.words, inner)


def read_messages(document: Document, media: list[str]) -> list[Document]:
    """The body's `messages`, checked; `media` as `check_content`. Raises Refusal 400."""
    given = document.get("messages")
    if given is None:
        raise missing("messages")
    messages: list[Document] = given  # pyright: ignore[reportAssignmentType] - as the reader checked
    if not messages:
        raise empty("messages", "at least one message")
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise wrong_type(f"messages[{position}]", "an object", message)
        role = message.get("role")
        if type(role) is not str:
            raise not_a_text(f"messages[{position}].role", role)
        content = message.get("content")
        if type(content) is not str:
            if content is None and role in _SPEAKERS and "tools" not in message:
                raise missing(f"messages[{position}].content")
            check_content(content, f"messages[{position}].content", media)
        calls = message.get("tool_calls")
        if calls is not None:
            if type(calls) is not list:
                raise wrong_type(f"messages[{position}].tool_calls", "an array", calls)
            check_items(f"messages[{position}].tool_calls", calls, OBJECT)
    return messages
