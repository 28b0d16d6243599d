"""An engine's answer as it passes: what is read off it, and what the client gets in its place."""

from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.streams import WholeEvents
from pointsman_edge.sending.unasked_usage import Rewriting

BUFFERED: Final = 2**19
"""A document that announces at most so many bytes comes in one piece; Envoy's buffer takes 1 MiB by default."""
HELD: Final = 2**23
"""A longer document keeps the model's name that the engine wrote: putting another in needs the whole of it."""
_STREAM: Final = b"text/event-stream"

Header = tuple[bytes, bytes]


class Answer:
    """One answer, from its headers on."""

    def __init__(self, headers: list[Header], api: Api, rewriting: Rewriting | None) -> None:
        """`rewriting` None: every byte stays."""
        by_name = dict(headers)
        status = by_name.get(b":status", b"0")
        self.status = int(status) if status.isdigit() else 0
        self.stream = by_name.get(b"content-type", b"").lower().startswith(_STREAM)
        length = by_name.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() else None
        self.rewriting = rewriting
        self.bytes = 0
        self.tail = api.usage()
        """Reads the usage of the answer."""
        self._events = WholeEvents() if self.stream else None
        self._held: list[bytes] = []

    def whole_with(self, data: bytes) -> bool:
        """Whether the answer has its announced length after `data`."""
        return self.length is not None and self.bytes + len(data) >= self.length

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its announced length."""
        return self.length is not None and self.bytes >= self.length

    def feed(self, data: bytes, *, end: bool) -> bytes:
        """The next piece; returns what the client gets in its place."""
        self.bytes += len(data)
        self.tail.feed(data)
        if self.rewriting is None:
            return data
        if self._events is not None:
            whole = self._events.feed(data)
            return self.rewriting.put(whole + self._events.rest() if end else whole)
        self._held.append(data)
        if not end and self.bytes <= HELD:
            return b""
        body = b"".join(self._held)
        self._held = []
        if self.bytes > HELD:
            self.rewriting = None
            return body
        return self.rewriting.put(body)
