"""Server-sent events, as they arrive (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import re
from typing import Final, NamedTuple

from pointsman_providers.errors import BrokenAnswer

LONGEST_LINE: Final = 16 * 2**20
"""A provider that sends more bytes without an end of line isn't sending events."""
_END: Final = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """One event."""

    name: str
    """Empty when it has none."""
    data: bytes


class Events:
    """One stream; bytes may be split anywhere."""

    __slots__ = ("_data", "_name", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Event]:
        """The next bytes; returns the events that are complete. Raises BrokenAnswer for a line without end."""
        text = self._rest + data
        # A CR at the end may be half of a CRLF.
        held = b"\r" if text.endswith(b"\r") else b""
        lines = _END.split(text[: len(text) - len(held)])
        self._rest = lines.pop() + held
        if len(self._rest) > LONGEST_LINE:
            raise BrokenAnswer("an event without end")
        return [event for line in lines if (event := self._line(line)) is not None]

    def end(self) -> list[Event]:
        """The stream is over; an event that lacks only its empty line still counts."""
        return self.feed(b"\n\n") if self._rest or self._data else []

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name, b"\n".join(self._data)) if self._data else None
            self._name = ""
            self._data = []
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None


def event(data: bytes, name: str = "") -> bytes:
    """An event on the wire; `data` has no end of line in it."""
    head = b"event: %b\n" % name.encode() if name else b""
    return b"%bdata: %b\n\n" % (head, data)


DONE: Final = event(b"[DONE]")
"""Ends OpenAI's streams of completions."""
