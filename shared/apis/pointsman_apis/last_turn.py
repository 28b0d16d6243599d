"""The words of a conversation's last turn, as later stages compare them by meaning."""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

Document = Mapping[str, object]

TURN: Final = "\x00"
"""Stands where the last turn was."""
_TEXT_PARTS: Final = frozenset({"text", "input_text"})


class LastTurn(NamedTuple):
    """A conversation and its last turn."""

    text: str
    """Empty when the last turn isn't a user's, or isn't text alone."""
    rest: object
    """The conversation with `TURN` in place of the text; None without a text."""


def last_turn(conversation: object) -> LastTurn:
    """The last turn of a prompt or of messages."""
    if isinstance(conversation, str):
        return LastTurn(conversation.strip(), TURN)
    messages = _messages(conversation)
    if not messages or not isinstance(messages[-1], dict):
        return LastTurn("", None)
    last = cast("Document", messages[-1])
    text = _said(last)
    return LastTurn("", None) if text is None else LastTurn(text, [*messages[:-1], {**last, "content": TURN}])


def last_user_text(conversation: object) -> str:
    """The text of the user's last message, whatever comes after it, or the text of a prompt; empty without one. It is
    `LastTurn.text` where the last turn is the user's."""
    if isinstance(conversation, str):
        return conversation.strip()
    for message in reversed(_messages(conversation)):
        if isinstance(message, dict):
            text = _said(cast("Document", message))
            if text:
                return text
    return ""


def _messages(conversation: object) -> list[object]:
    return cast("list[object]", conversation) if isinstance(conversation, list) else []


def _said(message: Document) -> str | None:
    """The text of a user's message; None for another's, and for one with anything but text."""
    if message.get("role") != "user":
        return None
    content = message.get("content")
    if isinstance(content, list):
        texts = [_text(part) for part in cast("list[object]", content)]
        if None in texts:
            return None
        content = "\n".join(text for text in texts if text is not None)
    return content.strip() if isinstance(content, str) else None


def _text(part: object) -> str | None:
    if not isinstance(part, dict):
        return None
    named = cast("Document", part)
    text = named.get("text")
    # A part with anything else in it, e.g. a mark for a provider's own cache, still is its text.
    return text if named.get("type") in _TEXT_PARTS and isinstance(text, str) else None
