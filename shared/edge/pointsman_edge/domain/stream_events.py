"""Server-sent events of a stream, taken apart and put together again."""

import re
from typing import Final, cast

import orjson

Document = dict[str, object]

_END: Final = re.compile(rb"\r\n\r\n|\n\n|\n\r\n|\r\r")
_SPLIT: Final = 3
"""Bytes of an end that may have arrived before the rest of it."""


class StreamEvent:
    """One event with the bytes that it came in."""

    __slots__ = ("changed", "document", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.document: Document | None = _document(raw)
        """Its data; None when that isn't a JSON object, as in `[DONE]`."""
        self.changed = False
        """The document isn't what came any more."""

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


def _document(raw: bytes) -> Document | None:
    lines = [line[5:] for line in raw.splitlines() if line.startswith(b"data:")]
    return document_of(b"\n".join(lines)) if lines else None
