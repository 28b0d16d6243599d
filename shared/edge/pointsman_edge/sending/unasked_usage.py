"""Removes the usage from a stream if the gateway asked for it and the client didn't."""

import re
from collections.abc import Sequence
from typing import Final, Protocol

from pointsman_apis.streams import EventSplitter, StreamEvent
from pointsman_contracts.journey import BodyEdit

_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
"""Can't be part of prompt or answer: a quote inside a JSON string is written `\\"`."""


class Rewriting(Protocol):
    """Replaces something in an answer."""

    def rewrite_bytes(self, data: bytes) -> bytes:
        """Whole events, or a whole document."""
        ...

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document."""
        ...

    def in_pieces(self) -> "Passing | None":
        """For a document that passes as it arrives; None when it passes unchanged."""
        ...


class Passing(Protocol):
    """Replaces something in one document that passes as it arrives."""

    def rewrite_part(self, data: bytes) -> bytes:
        """Take the next bytes from the engine; returns the bytes for the client."""
        ...

    def rest(self) -> bytes:
        """The bytes that are held, after the engine has ended the document."""
        ...


class WithoutUsage:
    """Drops events that have nothing but usage; all other bytes stay, except for the changes of `then`."""

    __slots__ = ("_then",)

    def __init__(self, then: Rewriting | None) -> None:
        self._then = then

    def rewrite_bytes(self, data: bytes) -> bytes:
        """Whole events, or a whole document."""
        if _NO_CHOICES.search(data) is not None:
            splitter = EventSplitter()
            events = (*splitter.split_bytes(data), *splitter.rest())
            data = b"".join(event.raw for event in events if not _is_usage(event))
        return data if self._then is None else self._then.rewrite_bytes(data)

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document."""
        return data if self._then is None else self._then.put_in_error(data)

    def in_pieces(self) -> Passing | None:
        """Like `Rewriting.in_pieces`: a document has no events."""
        return None if self._then is None else self._then.in_pieces()


def without_unasked_usage(edits: Sequence[BodyEdit], then: Rewriting | None) -> Rewriting | None:
    """`then`, after the changes that the request's edits require."""
    for edit in edits:
        if edit.field == "stream_options" and edit.unasked:
            return WithoutUsage(then)
    return then


def _is_usage(event: StreamEvent) -> bool:
    document = event.document
    return document is not None and document.get("choices") == [] and isinstance(document.get("usage"), dict)
