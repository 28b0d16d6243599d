"""The question of a request, reduced to the parts that decide its answer."""

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import orjson

from pointsman_apis import named
from pointsman_contracts.journey import BodyEdit, edited
from pointsman_core.fingerprint import deciding, fingerprint

Document = dict[str, object]

_TURN: Final = "\x00"
"""Stands where the last turn was."""
_TEXT_PARTS: Final = frozenset({"text", "input_text"})


class CacheQuestion(NamedTuple):
    """One request."""

    exact: bytes
    """Same as `RequestFacts.fingerprint`."""
    context: bytes
    """The same without the words of the last turn."""
    turn: str
    """The user's last message; empty where only the very same request may have the same answer: images, results of
    tools, several prompts, vectors."""


def asked(api: str, body: bytes, edits: Sequence[BodyEdit]) -> CacheQuestion | None:
    """The question in a body after the gateway's edits; None for a body that isn't a JSON object."""
    try:
        parsed = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    kept = deciding(edited(cast("Document", parsed), edits))
    exact = fingerprint(api, kept)
    member = named(api).conversation
    turn, rest = _last_turn(kept.get(member))
    if not turn:
        return CacheQuestion(exact, b"", "")
    return CacheQuestion(exact, fingerprint(api, {**kept, member: rest}), turn)


def _last_turn(conversation: object) -> tuple[str, object]:
    """The text of the last turn, and the conversation without it; no text when it isn't a user's, or isn't text."""
    if isinstance(conversation, str):
        return conversation.strip(), _TURN
    messages = cast("list[object]", conversation) if isinstance(conversation, list) else []
    if not messages or not isinstance(messages[-1], dict):
        return "", None
    last = cast("Document", messages[-1])
    if last.get("role") != "user":
        return "", None
    content = last.get("content")
    if isinstance(content, list):
        parts = cast("list[object]", content)
        texts = [_text(part) for part in parts]
        if None in texts:
            return "", None
        content = "\n".join(text for text in texts if text is not None)
    if not isinstance(content, str):
        return "", None
    return content.strip(), [*messages[:-1], {**last, "content": _TURN}]


def _text(part: object) -> str | None:
    if not isinstance(part, dict):
        return None
    named = cast("Document", part)
    text = named.get("text")
    # A part with anything else in it, e.g. a mark for a provider's own cache, still is its text.
    return text if named.get("type") in _TEXT_PARTS and isinstance(text, str) else None
