"""One request of a client and its answer on a connection."""

import asyncio
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol

from pointsman_frontend.domain.request_target import RequestTarget
from pointsman_runtime.telling.logs import Log

READ_AHEAD: Final = 65536
"""Bytes of a body that may wait for the application; reading stops until it takes them."""
_STATUS_LINES: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
_NO_NAME: Final = re.compile(rb'[\x00-\x20\x7f()<>@,;:\[\]={}\\"]')
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LINE: Final = b"%b: %b\r\n".__mod__
_REMEMBERED: Final = 1024
_INTERNAL_ERROR: Final = b"Internal Server Error"

Header = tuple[bytes, bytes]

_log = Log("http")
_names: set[bytes] = set()
"""Names of headers that were checked, in lower case."""


class ClientGone(Exception):
    """The client hung up before its request was complete."""


class Wire(Protocol):
    """The connection, as far as a turn needs it."""

    paused: bool
    """The client reads more slowly than it is written to."""
    hung_up: Callable[[], None] | None
    """Called when the client hangs up before the answer is complete; an answer that is complete clears it."""

    def write(self, data: bytes) -> None:
        """Send soon, in order."""
        ...

    def send(self, data: bytes) -> None:
        """Send now, in order."""
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

    def ended(self) -> None:
        """The answer is complete."""
        ...


class Turn:
    """One request. Its answer is `answer`, or `start`, `write` and `end`; status and headers leave with the first bytes
    of the body, or alone at the end of the event loop's turn. The methods of an answer do nothing once the client is
    gone."""

    task: asyncio.Task[None] | None = None
    """Serves the connection's requests, at the moment this one."""
    extra: Sequence[Header] = ()
    """Headers of any answer, besides its own."""
    disconnected = False
    started = False
    complete = False
    _size = 0
    _more_body = True
    _waiter: asyncio.Future[None] | None = None
    _chunked = False
    _left: int | None = None
    """Bytes of the answer that are still to come; None without a content-length."""

    def __init__(
        self,
        wire: Wire,
        method: str,
        target: RequestTarget,
        headers: list[Header],
        version: str,
        peer: str,
        *,
        keep_alive: bool,
        expects_continue: bool = False,
    ) -> None:
        """`headers`: names in lower case; `version`: of HTTP, e.g. `1.1`; `peer`: the client's address, or empty."""
        self.wire = wire
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        self.peer = peer
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self._body: list[bytes] = []

    def feed(self, piece: bytes) -> bool:
        """Take a piece of the body. False when reading is to stop until the application has taken it."""
        self._body.append(piece)
        self._size += len(piece)
        if self._waiter is not None:
            self._wake(self._waiter)
        return self._size <= READ_AHEAD

    def feed_end(self) -> None:
        """The body is complete."""
        self._more_body = False
        if self._waiter is not None:
            self._wake(self._waiter)

    def disconnect(self) -> None:
        """The client is gone."""
        self.disconnected = True
        if self._waiter is not None:
            self._wake(self._waiter)

    def _wake(self, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            waiter.set_result(None)

    def served(self) -> None:
        """The application has returned. Without a complete answer the connection is lost."""
        if not self.complete and not self.disconnected:
            _log.error("answer_incomplete", started=self.started)
            self._fail()

    def failed(self, error: BaseException) -> None:
        """The application raised: the connection is lost."""
        _log.error("application_failed", error)
        self._fail()

    def whole(self) -> bytes | None:
        """The body, if all of it is here and none of it was read. It is held no longer: the turn lives until the next
        one on its connection."""
        if self._more_body or self.disconnected:
            return None
        if self.expects_continue:
            self._continue()
        body, self._body = self._body, []
        return body[0] if len(body) == 1 else b"".join(body)

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises ClientGone when the client is gone or has its answer."""
        if self.expects_continue:
            self._continue()
        while not (self.disconnected or self.complete):
            if self._body or not self._more_body:
                piece = b"".join(self._body)
                self._body.clear()
                self._size = 0
                if self._more_body:
                    self.wire.resume_reading()
                return piece
            self.wire.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        raise ClientGone

    def start(self, status: int, headers: Sequence[Header]) -> None:
        """Status and headers."""
        if not self.disconnected:
            self.wire.write(self._head(status, headers))

    def write(self, data: bytes) -> None:
        """A piece of the body."""
        if not self.disconnected and (framed := self._framed(data, last=False)):
            self.wire.write(framed)

    def end(self, data: bytes = b"") -> None:
        """The last piece."""
        if not self.disconnected:
            self._finish(self._framed(data, last=True))

    def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A whole answer."""
        if not self.disconnected:
            head = self._head(status, headers)
            self._finish(head + (body if self._left == len(body) else self._framed(body, last=True)))

    def _continue(self) -> None:
        self.expects_continue = False
        if not self.wire.is_closing():
            self.wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head(self, status: int, headers: Sequence[Header]) -> bytes:
        if self.started:
            raise RuntimeError("an answer has one head")
        self.started = True
        self.expects_continue = False
        if self.extra:
            headers = [*headers, *self.extra]
        framed = closes = False
        if headers:
            names, values = zip(*headers, strict=True)
            if not _names.issuperset(names):
                headers = [(_checked(name), value) for name, value in headers]
                names = [name for name, _ in headers]
            if _NO_VALUE.search(b" ".join(values)):
                raise RuntimeError("a header's value has control characters")
            framed = b"content-length" in names
            if framed:
                self._left = int(values[names.index(b"content-length")])
            closes = b"connection" in names and b"close" in values[names.index(b"connection")].lower()
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self.wire.date_headers()]
        lines += map(_LINE, headers)
        if self.method == "HEAD" or status in (204, 304):
            self._left = 0
        elif not framed:
            # HTTP/1.0 knows no chunks (RFC 9112, 6.1): such an answer ends with its connection.
            self._chunked = self.version != "1.0"
            if self._chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _framed(self, body: bytes, *, last: bool) -> bytes:
        """A piece of the body as it goes onto the wire."""
        if not self.started or self.complete:
            raise RuntimeError("a body comes after its head, and ends once")
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk + b"0\r\n\r\n" if last else chunk
        if self._left is None:
            return body
        if self.method == "HEAD":
            return b""
        self._left -= len(body)
        if self._left < 0 or (self._left and last):
            raise RuntimeError("the body isn't as long as its content-length")
        return body

    def _finish(self, last: bytes) -> None:
        self.complete = True
        wire = self.wire
        # At once: events about the request, which are published next, needn't hold up its answer.
        wire.send(last)
        if self._waiter is not None:
            self._wake(self._waiter)
        if not self.keep_alive:
            wire.close()
        wire.ended()

    def _fail(self) -> None:
        if self.started:
            self.wire.close()
            return
        length = b"%d" % len(_INTERNAL_ERROR)
        headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
        self.answer(500, headers, _INTERNAL_ERROR)


def _checked(given: bytes) -> bytes:
    if not given or _NO_NAME.search(given):
        raise RuntimeError("a header's name has characters that no name has")
    if len(_names) >= _REMEMBERED:
        _names.clear()
    name = given.lower()
    _names.add(name)
    return name
