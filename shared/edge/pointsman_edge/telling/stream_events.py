"""Server-sent events of a stream, taken apart and put together again."""

import re
from collections.abc import Sequence
from typing import Final, cast

import orjson

from pointsman_contracts.journey import BodyEdit
from pointsman_core.duplicate_members import has_duplicate_member

Document = dict[str, object]

_END: Final = re.compile(rb"\r\n\r\n|\n\n|\n\r\n|\r\r")
_SPLIT: Final = 3
"""Bytes of an end that may have arrived before the rest of it."""
_DONE: Final = b"[DONE]"
_WITHOUT_TEXT: Final = re.compile(
    rb"event: ?[\w.-]{0,64}|id: ?[\w.:-]{0,128}|retry:[ 0-9]{0,10}|:[ A-Za-z.-]{0,64}|data"
)
"""Lines beside the data that hold no text: names of events, and comments in words that keep a connection open."""


class StreamEvent:
    """One event with the bytes that it came in."""

    __slots__ = ("_beside", "_data", "_readable", "changed", "document", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        lines = raw.splitlines()
        said = [line[5:] for line in lines if line.startswith(b"data:")]
        self._beside = lines if len(said) != 1 or len(lines) != 2 or lines[1] else None
        self._data = b"\n".join(said).strip()
        self.document: Document | None = document_of(self._data) if said else None
        """Its data; None when that isn't a JSON object, as in `[DONE]`."""
        self.changed = False
        """The document isn't what came any more."""
        self._readable: bool | None = None

    @property
    def readable(self) -> bool:
        """Whether `document` is all that a client can read in the event; asked before it is changed."""
        if self._readable is None:
            self._readable = self._is_readable()
        return self._readable

    def _is_readable(self) -> bool:
        for line in self._beside or ():
            if line and not line.startswith(b"data:") and not _WITHOUT_TEXT.fullmatch(line):
                return False
        if self.document is None:
            return self._data in (b"", _DONE)
        return _is_unambiguous(self._data, self.document)

    def set(self, fields: Sequence[BodyEdit]) -> None:
        """Set and remove fields of the top level, where there is a document."""
        document = self.document
        if document is None:
            return
        _ = self.readable  # of what came, which a stage behind may ask
        for edit in fields:
            if edit.remove:
                document.pop(edit.field, None)
            else:
                document[edit.field] = edit.value
        self.changed = True

    def encode(self) -> bytes:
        """The very bytes that came, unless the document was changed."""
        if not self.changed:
            return self.raw
        kept = [line for line in self.raw.splitlines() if line and not line.startswith(b"data:")]
        return b"\n".join((*kept, b"data: " + orjson.dumps(self.document), b"", b""))


class EventSplitter:
    """Cuts a stream into events, however its bytes arrive."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def size(self) -> int:
        """Bytes of an event whose end hasn't come."""
        return len(self._held)

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that are complete with the next bytes."""
        held = self._held
        looked = max(0, len(held) - _SPLIT)
        held += data
        events: list[StreamEvent] = []
        start = 0
        while (end := _END.search(held, looked)) is not None:
            events.append(StreamEvent(bytes(held[start : end.end()])))
            start = looked = end.end()
        del held[:start]
        return events

    def rest(self) -> list[StreamEvent]:
        """What is left when the stream is over: an event without its end."""
        left = bytes(self._held)
        self._held.clear()
        return [StreamEvent(left)] if left else []


def document_of(data: bytes) -> Document | None:
    """A JSON object; None when it is anything else."""
    try:
        document = cast("object", orjson.loads(data))
    except orjson.JSONDecodeError:
        return None
    return cast("Document", document) if isinstance(document, dict) else None


def unambiguous(data: bytes) -> Document | None:
    """As `document_of`, of which every reader reads the same; None where a member occurs twice."""
    document = document_of(data)
    return document if document is not None and _is_unambiguous(data.strip(), document) else None


def _is_unambiguous(data: bytes, document: Document) -> bool:
    try:
        return not has_duplicate_member(data, document)
    except orjson.JSONEncodeError:  # deeper than orjson writes, as a changed one would have to be
        return False
