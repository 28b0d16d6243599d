"""The way of an answer to Envoy in full duplex: its head, its events as they may leave, and comments while it is
silent."""

from typing import Final

from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.stream import Stream

_ENDS: Final = (b"\n\n", b"\r\r", b"\n\r\n")


class DuplexAnswer:
    """One answer."""

    def __init__(self, stream: Stream) -> None:
        self.stream: Final = stream
        self._head: bytes | None = None
        self._last = b"\n\n"
        """The last bytes that left."""
        self._writing = False
        self._ended = False
        self.writes = 0
        """Times that something left."""

    def begin_answer(self, head: bytes) -> None:
        """`head`, the message that lets the headers pass, leaves with the next bytes."""
        self._head = head

    async def write(self, data: bytes, *, end: bool) -> None:
        """The next bytes; `end`: the last ones."""
        head, self._head = self._head, None
        self.writes += 1
        self._ended = end
        self._writing = True
        try:
            if head is None:
                await self.stream.write_body(data, of_request=False, end=end)
            else:
                body = wire.streamed(data, of_request=False, end=end) if data or end else ()
                await self.stream.write_all((head, *body))
        finally:
            self._writing = False
        if data:
            self._last = data

    def write_aside(self, event: bytes) -> bool:
        """Send the head if it waits, and an event that isn't part of the answer. False where Envoy can't take one now,
        or is within an event."""
        if self._ended or self._writing or not self._last.endswith(_ENDS):
            return False
        head = () if self._head is None else (self._head,)
        if not self.stream.send_if_taken(*head, wire.piece(event, of_request=False, end=False)):
            return False
        self._head = None
        self.writes += 1
        return True
