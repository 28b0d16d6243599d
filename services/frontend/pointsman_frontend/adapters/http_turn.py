"""One request and its answer on a connection, as ASGI's `receive` and `send`."""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from pointsman_runtime.service.http_server import App, Scope
from pointsman_runtime.telling.logs import Log

READ_AHEAD: Final = 65536
"""Bytes of a body that may wait for the application; reading stops until it takes them."""
_STATUS_LINES: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
_NO_NAME: Final = re.compile(rb'[\x00-\x20\x7f()<>@,;:\[\]={}\\"]')
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REMEMBERED: Final = 1024
_INTERNAL_ERROR: Final = b"Internal Server Error"

_log = Log("http")
_names: dict[bytes, bytes] = {}
"""Names of headers that were checked, in lower case."""


class Wire(Protocol):
    """The connection, as far as a turn needs it."""

    paused: bool
    """The client reads more slowly than it is written to."""

    def write(self, data: bytes) -> None:
        """Send soon, in order."""
        ...

    def close(self) -> None:
        """Close after the bytes that were written."""
        ...

    def is_closing(self) -> bool:
        """Whether the connection is closing or closed."""
        ...

    def resume_reading(self) -> None:
        """Go on reading the body."""
        ...

    async def writable(self) -> None:
        """Wait until the client has read enough."""
        ...

    def date_headers(self) -> bytes:
        """The headers of every answer, as lines."""
        ...


class Turn:
    """Serves one request. Status and headers leave with the first bytes of the body, or alone at the end of the
    event loop's turn."""

    __slots__ = (
        "_body", "_chunked", "_ended", "_got_end", "_left", "_more_body", "_size", "_waiter", "_wire", "complete",
        "disconnected", "expects_continue", "keep_alive", "scope", "started",
    )  # fmt: skip

    def __init__(self, wire: Wire, scope: Scope, ended: Callable[[], None], *, keep_alive: bool) -> None:
        """`ended` is called once, when the answer is complete."""
        self._wire = wire
        self._ended = ended
        self.scope = scope
        self.keep_alive = keep_alive
        self.expects_continue = False
        self.disconnected = False
        self.started = False
        self.complete = False
        self._body: list[bytes] = []
        self._size = 0
        self._more_body = True
        self._got_end = False
        """The application has the end of the body."""
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._left: int | None = None
        """Bytes of the answer that are still to come; None without a content-length."""

    def feed(self, piece: bytes) -> bool:
        """Take a piece of the body. False when reading is to stop until the application has taken it."""
        self._body.append(piece)
        self._size += len(piece)
        self.wake()
        return self._size <= READ_AHEAD

    def feed_end(self) -> None:
        """The body is complete."""
        self._more_body = False
        self.wake()

    def disconnect(self) -> None:
        """The client is gone."""
        self.disconnected = True
        self.wake()

    def wake(self) -> None:
        """Let `receive` look again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def run(self, app: App) -> None:
        """Serve the request. An application that raises, or ends without a complete answer, loses its connection."""
        try:
            await app(self.scope, self.receive, self.send)
        # Any error ends this connection alone; the server cancels a turn when its patience is over.
        except BaseException as error:  # noqa: BLE001
            _log.error("application_failed", error)
            await self._fail()
        else:
            if not self.complete and not self.disconnected:
                _log.error("answer_incomplete", started=self.started)
                await self._fail()

    async def receive(self) -> Scope:
        """The next piece of the body, or `http.disconnect` when the client is gone or has its answer."""
        if self.expects_continue and not self._wire.is_closing():
            self.expects_continue = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.disconnected or self.complete):
            if self._body or not (self._more_body or self._got_end):
                body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body.clear()
                self._size = 0
                self._got_end = not self._more_body
                if self._more_body:
                    self._wire.resume_reading()
                return {"type": "http.request", "body": body, "more_body": self._more_body}
            self._wire.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return {"type": "http.disconnect"}

    async def send(self, message: Scope) -> None:
        """Send a message of ASGI. Waits for a client that reads slowly; does nothing when it is gone."""
        if self._wire.paused and not self.disconnected:
            await self._wire.writable()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        else:
            self._write(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: "list[tuple[bytes, bytes]]") -> None:
        if self.started:
            raise RuntimeError("an answer has one head")
        self.started = True
        self.expects_continue = False
        parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._wire.date_headers()]
        values: list[bytes] = []
        framed = closes = False
        for given, value in headers:
            name = _names.get(given) or _checked(given)
            if name == b"content-length":
                self._left = int(value)
                framed = True
            elif name == b"connection":
                closes = b"close" in value.lower()
            parts += (name, b": ", value, b"\r\n")
            values.append(value)
        if _NO_VALUE.search(b" ".join(values)):
            raise RuntimeError("a header's value has control characters")
        if self.scope["method"] == "HEAD" or status in (204, 304):
            self._left = 0
        elif not framed:
            # HTTP/1.0 knows no chunks (RFC 9112, 6.1): such an answer ends with its connection.
            self._chunked = self.scope["http_version"] != "1.0"
            if self._chunked:
                parts.append(b"transfer-encoding: chunked\r\n")
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self._wire.write(b"".join(parts))

    def _write(self, body: bytes, *, more: bool) -> None:
        if not self.started or self.complete:
            raise RuntimeError("a body comes after its head, and ends once")
        if self._chunked:
            if body:
                self._wire.write(b"%x\r\n%b\r\n" % (len(body), body))
            if not more:
                self._wire.write(b"0\r\n\r\n")
        elif self._left is None:
            self._wire.write(body)
        elif self.scope["method"] != "HEAD":
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body isn't as long as its content-length")
            if body:
                self._wire.write(body)
        if not more:
            self.complete = True
            self.wake()
            if not self.keep_alive:
                self._wire.close()
            self._ended()

    async def _fail(self) -> None:
        if self.started:
            self._wire.close()
            return
        length = b"%d" % len(_INTERNAL_ERROR)
        headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _INTERNAL_ERROR})


def _checked(given: bytes) -> bytes:
    if not given or _NO_NAME.search(given):
        raise RuntimeError("a header's name has characters that no name has")
    if len(_names) >= _REMEMBERED:
        _names.clear()
    name = _names[given] = given.lower()
    return name
