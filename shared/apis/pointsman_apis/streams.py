"""Server-sent events: the only place that cuts streams into them and writes them.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import orjson

from pointsman_contracts.journey import BodyEdit
from pointsman_core.json_members import duplicate_member, has_duplicate_member
from pointsman_core.lenient_json import read, write

Document = dict[str, object]

HELD: Final = 2**20
"""An event longer than this many bytes passes in pieces."""
_END: Final = re.compile(rb"\r\n\r\n|\n\n|\n\r\n|\r\r")
_ENDS: Final = (b"\n\n", b"\n\r\n", b"\r\r")
_SPLIT: Final = 2
"""Bytes of an end that may have arrived before the rest of it."""
_DONE_DATA: Final = b"[DONE]"
DONE: Final = b"data: [DONE]\n\n"
"""Ends OpenAI's streams of choices."""
KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which every client ignores."""
_WITHOUT_TEXT: Final = re.compile(
    rb"event: ?[\w.-]{0,64}|id: ?[\w.:-]{0,128}|retry:[ 0-9]{0,10}|:[ A-Za-z.-]{0,64}|data"
)
"""Lines beside the data that hold no text: names of events, and comments in words that keep a connection open."""


class StreamEvent:
    """One event with the bytes that it came in."""

    __slots__ = ("_beside", "_document", "_parsed", "_readable", "changed", "data", "raw", "strict")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        lines = raw.splitlines()
        values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        self._beside = lines if len(values) != 1 or len(lines) != 2 or lines[1] else None
        """Its lines, where it has more than one of data."""
        self.data = b"\n".join(values)
        """Its data; empty where it has none."""
        self._document: Document | None = None
        self._parsed = False
        self.strict = True
        """orjson writes the document as it came."""
        self.changed = False
        """The document isn't what came any more."""
        self._readable: bool | None = None

    @property
    def name(self) -> str:
        """The event's type; empty where it has none."""
        names = [line[6:].strip() for line in self._beside or () if line.startswith(b"event:")]
        return names[-1].decode("utf-8", "replace") if names else ""

    @property
    def document(self) -> Document | None:
        """The data as a JSON object; None when it isn't one, as `[DONE]`."""
        if not self._parsed:
            self._parsed = True
            if self.data:
                self._document, self.strict = _read(self.data)
        return self._document

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
            return self.data.strip() in (b"", _DONE_DATA)
        return _is_unambiguous(self.data.strip(), self.document, strict=self.strict)

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
        return b"\n".join((*kept, b"data: " + write(self.document, strict=self.strict), b"", b""))

    @property
    def comments(self) -> bytes:
        """The comments of an event without data, as an event; empty where it has none."""
        if self.data:
            return b""
        lines = [line for line in self.raw.splitlines() if line.startswith(b":")]
        return b"\n".join((*lines, b"", b"")) if lines else b""


class WholeEvents:
    """Holds the bytes of an event until its end has come. All others leave as they came.

    A client can't use an incomplete event; and a stream that breaks off ends between two events, where an error event
    can follow.
    """

    __slots__ = ("_before", "_held", "_longest", "size")

    def __init__(self, longest: int | None = HELD) -> None:
        """`longest`: an event of more bytes passes in pieces; None holds any."""
        self._held: list[bytes] = []
        self._longest = longest
        self.size = 0
        """Bytes that are held."""
        self._before = b""

    def complete_events(self, data: bytes) -> bytes:
        """The next bytes of the stream; returns those that complete events."""
        if not self._held and data.endswith((b"\n\n", b"\r\n\r\n")):
            return data
        seen = self._before + data
        end = max(seen.rfind(mark) + len(mark) if mark in seen else 0 for mark in _ENDS) - len(self._before)
        if end <= 0:
            self._hold(data)
            return self.rest() if self._longest is not None and self.size > self._longest else b""
        whole = b"".join((*self._held, data[:end]))
        self.rest()
        if end < len(data):
            self._hold(data[end:])
        return whole

    def rest(self) -> bytes:
        """The bytes that are held, which it drops."""
        held = b"".join(self._held)
        self._held = []
        self.size = 0
        self._before = b""
        return held

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self.size += len(data)
        self._before = (self._before + data)[-_SPLIT:]


class EventSplitter:
    """Cuts a stream into events, however its bytes arrive."""

    __slots__ = ("_begun", "_whole")

    def __init__(self) -> None:
        self._whole = WholeEvents(longest=None)
        self._begun = False

    @property
    def size(self) -> int:
        """Bytes of an event whose end hasn't come."""
        return self._whole.size

    def split_bytes(self, data: bytes) -> list[StreamEvent]:
        """The events that are complete with the next bytes."""
        return list(self.split_one_by_one(data))

    def split_one_by_one(self, data: bytes, *, last: bool = False) -> Iterator[StreamEvent]:
        """The events that are complete with the next bytes, cut one by one: a reader of the first one doesn't pay for
        the others. With `last` the stream ends with these bytes."""
        whole = self._whole.complete_events(data)
        start = 0
        if not self._begun and whole:
            self._begun = True
            # A byte order mark may come first, and isn't part of the first event.
            start = len(codecs.BOM_UTF8) if whole.startswith(codecs.BOM_UTF8) else 0
        for end in _END.finditer(whole, start):
            yield StreamEvent(whole[start : end.end()])
            start = end.end()
        if start < len(whole):
            # An empty line of another kind follows the end of the last event.
            yield StreamEvent(whole[start:])
        if last:
            yield from self.rest()

    def rest(self) -> list[StreamEvent]:
        """The event that the stream ends within; none where it ends with a whole event."""
        left = self._whole.rest()
        if not self._begun:
            left = left.removeprefix(codecs.BOM_UTF8)
        return [StreamEvent(left)] if left else []


def document_of(data: bytes) -> Document | None:
    """A JSON object; None when it is anything else."""
    try:
        # orjson refuses bytes of another class, as a Blob's, and reads a view of them.
        document = cast("object", orjson.loads(memoryview(data)))
    except orjson.JSONDecodeError:
        return None
    return cast("Document", document) if isinstance(document, dict) else None


def lenient_document(data: bytes) -> Document | None:
    """Like `document_of`, of JSON as clients read it."""
    return _read(data)[0] if data else None


def _read(data: bytes) -> tuple[Document | None, bool]:
    """A JSON object as clients read it, None when it is anything else, and whether orjson writes it as it came."""
    try:
        document, strict = read(data)
    except ValueError:
        return None, True
    return (cast("Document", document) if isinstance(document, dict) else None), strict


def unambiguous(data: bytes) -> tuple[Document | None, bool]:
    """Like `lenient_document`, but None where a member occurs twice, which readers read differently; and whether
    orjson writes it as it came."""
    document, strict = _read(data)
    if document is None or not _is_unambiguous(data.strip(), document, strict=strict):
        return None, True
    return document, strict


def _is_unambiguous(data: bytes, document: Document, *, strict: bool) -> bool:
    try:
        if strict:
            return not has_duplicate_member(data, document)
        return duplicate_member(data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").encode()) is None
    except orjson.JSONEncodeError:
        return False  # deeper than orjson writes, as a changed one would have to be


def without_mark(body: bytes) -> bytes:
    """A document without the mark of a stream, which some services put behind documents, too."""
    cut = body.rstrip()
    return cut.removesuffix(b"data: [DONE]") if cut.endswith(b"data: [DONE]") else body


def named_event(document: Mapping[str, object]) -> bytes:
    """An event named as its `type`."""
    return event(orjson.dumps(document), str(document["type"]))


def event(data: bytes, name: str = "") -> bytes:
    """An event as bytes; `data` has no end of line in it."""
    head = b"event: %b\n" % name.encode() if name else b""
    return b"%bdata: %b\n\n" % (head, data)
