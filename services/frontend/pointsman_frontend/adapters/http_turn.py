"""One request of a client and its answer on a connection."""

import asyncio
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, Protocol

from pointsman_contracts.journey import HeaderEdit
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_frontend.domain.heads import RequestTarget
from pointsman_runtime.telling.logs import Log

HELD_S: Final = 60.0
"""Seconds for which the end of an answer is held at most."""
READ_AHEAD: Final = 65536
"""Bytes of a body that may wait for the application; reading stops until it takes them."""
_STATUS_LINES: Final = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
_NO_NAME: Final = re.compile(rb'[\x00-\x20\x7f()<>@,;:\[\]={}\\"]')
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LINE: Final = b"%b: %b\r\n".__mod__
_REMEMBERED: Final = 256
_EVENTS: Final = b"text/event-stream"
_BETWEEN: Final = b"\n\n"
_ENDS: Final = (_BETWEEN, b"\n\r\n", b"\r\r")
"""Ends of bytes between two events."""
_BODILESS: Final = frozenset({204, 304})
_INTERNAL_ERROR: Final = b"Internal Server Error"

Header = tuple[bytes, bytes]
Headers = list[Header]

_log = Log("http")
_Names = tuple[list[bytes] | None, int | None, int | None]
"""For a list of names: the same in lower case where they aren't so, and which of them is `Content-Length` and which
`Connection`."""
_seen: dict[tuple[bytes, ...], _Names] = {}
"""Lists of names that were checked."""


class ClientGone(Exception):
    """The client hung up before its request was complete."""


class Wire(Protocol):
    """The connection, as far as a turn needs it."""

    peer: str
    """The client's address; empty when it isn't known."""
    trusted: bool
    """The peer is a proxy that may name its client."""
    paused: bool
    """The client reads more slowly than it is written to."""
    hung_up: Callable[[], None] | None
    """Called when the client hangs up before the answer is complete; an answer that is complete clears it."""

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

    def finish(self, data: bytes, *, keep_alive: bool) -> None:
        """Send the end of an answer now, and close after it unless the connection is kept alive."""
        ...

    async def writable(self) -> None:
        """Wait until the client has read enough."""
        ...

    def date_headers(self) -> bytes:
        """The headers of every answer, as lines."""
        ...


class Turn:
    """One request, and the writer of its answer: `answer`, or `start`, `write` and `end`. Status and headers leave with
    the first bytes of the body, or alone at the end of the event loop's turn. Once the client is gone, nothing is
    written. A client that reads slowly is waited for."""

    task: asyncio.Task[None] | None = None
    """Serves the connection's requests, at the moment this one."""
    expects_continue = False
    ids: Sequence[Header] = ()
    """The request's id, in the headers of any answer."""
    extra: Sequence[Header] = ()
    """Headers of any answer, besides its own."""
    answer_headers: tuple[HeaderEdit, ...] = ()
    """Edits of the headers of any answer."""
    disconnected = False
    status: int | None = None
    """The status of the answer, once it has begun."""
    complete = False
    bytes_out = 0
    """Bytes of the answer's body."""
    size = 0
    """Bytes of `body`."""
    more_body = True
    """The body isn't complete; the connection feeds it."""
    waiter: asyncio.Future[None] | None = None
    """The application's wait for more of the body."""
    early: Callable[[int, bytes], bytes] | None = None
    """Set once the head of a stream has left before there was an answer: makes events of an answer that is none."""
    _last = _BETWEEN
    """Bytes of the answer that were written last."""
    _gathered: list[bytes] | None = None
    """An answer that isn't a stream, for a client that has the head of one."""
    _held: asyncio.Future[None] | None = None
    """Done when the end of the answer may leave; None: at once."""
    _kept = b""
    """The last piece, of an answer whose end is held."""
    held_end: bytes | None = None
    """The end of the answer, while it is held."""
    _chunked = False
    _left: int | None = None
    """Bytes of the answer that are still to come; None without a content-length."""

    def __init__(
        self,
        wire: Wire,
        method: str,
        target: RequestTarget,
        headers: Headers,
        version: str,
        *,
        keep_alive: bool,
    ) -> None:
        """`headers`: names in lower case; `version`: of HTTP, e.g. `1.1`."""
        self.wire = wire
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        """The bytes of the body that came and weren't read."""

    def disconnect(self) -> None:
        """The client is gone."""
        self.disconnected = True
        if self.waiter is not None:
            self.wake()

    def wake(self) -> None:
        """End the wait for the body."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def served(self) -> None:
        """The application has returned without a complete answer: its end is held, or the connection is lost."""
        if self.held_end is not None:
            await self._give_end(self.held_end)
        elif not self.complete and not self.disconnected:
            _log.error("answer_incomplete", started=self.started)
            self._fail()

    def failed(self, error: BaseException) -> None:
        """The application raised: the connection is lost."""
        _log.error("application_failed", error)
        self._fail()

    def whole(self) -> bytes | None:
        """The body, if all of it is here and none of it was read. It is held no longer: the turn lives until the next
        one on its connection."""
        if self.more_body or self.disconnected:
            return None
        if self.expects_continue:
            self._continue()
        body, self.body = self.body, []
        return body[0] if len(body) == 1 else b"".join(body)

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises ClientGone when the client is gone or has its answer."""
        if self.expects_continue:
            self._continue()
        while not (self.disconnected or self.complete):
            if self.body or not self.more_body:
                piece = b"".join(self.body)
                self.body.clear()
                self.size = 0
                if self.more_body:
                    self.wire.resume_reading()
                return piece
            self.wire.resume_reading()
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        raise ClientGone

    @property
    def started(self) -> bool:
        """Whether status and headers have left."""
        return self.status is not None

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they may leave with the first bytes of the body."""
        if self.wire.paused:
            await self.wire.writable()
        if self.early is not None:
            self.status = status
            self._gathered = None if _is_stream(headers) else []
            return
        head = self._head(status, headers)
        if not self.disconnected:
            self.wire.write(head)

    def begin_early(self, headers: Headers, early: Callable[[int, bytes], bytes]) -> None:
        """Send the head of a stream before its answer has begun; `started` stays false until it begins. `early` as the
        member. Not for an answer that has begun."""
        head = self._head(200, headers)
        self.status, self.early = None, early
        self.wire.write(head)

    def write_aside(self, data: bytes) -> bool:
        """Send an event that isn't part of the answer. False where the client can't take one now."""
        if self.disconnected or self.complete or self.wire.paused or self._gathered is not None:
            return False
        if not self._last.endswith(_ENDS):
            return False
        self.wire.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return True

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        if self.wire.paused:
            await self.wire.writable()
        if self._held is not None:
            data, self._kept = self._kept, data
        if self._gathered is not None:
            self._gathered.append(data)
            return
        self.bytes_out += len(data)
        self._last = data
        if not self.disconnected and (framed := self._framed(data, last=False)):
            self.wire.write(framed)

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        if self.wire.paused:
            await self.wire.writable()
        if self._kept:
            data = self._kept + data
        if self._gathered is not None and self.early is not None:
            data = self.early(self.status or 200, b"".join((*self._gathered, data)))
        self.bytes_out += len(data)
        self._finish(b"" if self.disconnected else self._framed(data, last=True))

    async def fail(self, event: bytes) -> None:
        """The last event of a stream that can't go on."""
        await self.end(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        if self.wire.paused:
            await self.wire.writable()
        if self.early is not None:
            self.status = 200
            await self.end(self.early(status, body))
            return
        size = len(body)
        headers.append((b"content-length", b"%d" % size))
        head = self._head(status, headers)
        self.bytes_out = size
        self._finish(head + (body if self._left == size else self._framed(body, last=True)))

    def hold_end(self) -> asyncio.Future[None]:
        """Hold the end of the answer until the future that is returned is done, for `HELD_S` at most; then the
        connection is closed without it."""
        held = self._held = asyncio.get_running_loop().create_future()
        return held

    async def _give_end(self, last: bytes) -> None:
        held, self._held = self._held, None
        if held is not None:
            await asyncio.wait((held,), timeout=HELD_S)
            if not held.done():
                self.disconnect()
                self.wire.close()
        self._finish(last)

    def _continue(self) -> None:
        self.expects_continue = False
        if not self.wire.is_closing():
            self.wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head(self, status: int, headers: Headers) -> bytes:
        if self.status is not None:
            raise RuntimeError("the head of the response was already sent")
        self.status = status
        self.expects_continue = False
        if self.answer_headers:
            headers = edited_answer_headers(headers, self.answer_headers)
        headers = [*headers, *self.ids, *self.extra]
        names, values = zip(*headers) if headers else ((), ())  # noqa: B905 - all are pairs
        lower, length_at, connection_at = _seen.get(names) or _learned(names)
        if _NO_VALUE.search(b" ".join(values)):
            raise RuntimeError("a header value of the response has control characters")
        more = b""
        if self.method == "HEAD" or status in _BODILESS:
            self._left = 0
        elif length_at is not None:
            self._left = int(values[length_at])
        elif self.version != "1.0":
            # HTTP/1.0 knows no chunks (RFC 9112, 6.1): such an answer ends with its connection.
            self._chunked = True
            more = b"transfer-encoding: chunked\r\n"
        if connection_at is not None and b"close" in values[connection_at].lower():
            self.keep_alive = False
        elif not self.keep_alive:
            more += b"connection: close\r\n"
        lines = b"".join(map(_LINE, headers if lower is None else zip(lower, values, strict=True)))
        status_line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        return b"%b%b%b%b\r\n" % (status_line, self.wire.date_headers(), lines, more)

    def _framed(self, body: bytes, *, last: bool) -> bytes:
        """A piece of the body as it goes onto the wire."""
        if self.status is None or self.complete:
            raise RuntimeError("the body was sent before the head of the response, or after its own end")
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk + b"0\r\n\r\n" if last else chunk
        if self._left is None:
            return body
        if self.method == "HEAD":
            return b""
        self._left -= len(body)
        if self._left < 0 or (self._left and last):
            raise RuntimeError("the length of the body differs from its content-length")
        return body

    def _finish(self, last: bytes) -> None:
        if self._held is not None:
            self.held_end = last
            return
        self.complete = True
        if not self.disconnected:
            # At once: events about the request, which are published next, needn't hold up its answer.
            self.wire.finish(last, keep_alive=self.keep_alive)
        if self.waiter is not None:
            self.wake()

    def _fail(self) -> None:
        if self.status is not None or self.early is not None:
            self.wire.close()
            return
        length = b"%d" % len(_INTERNAL_ERROR)
        headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
        head = self._head(500, headers)
        self._finish(head + self._framed(_INTERNAL_ERROR, last=True))


def _is_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(_EVENTS) for name, value in headers)


def id_headers(request_id: str, also: bytes | None = None) -> Headers:
    """Headers with the request's id; `also` is the name of a second one."""
    value = request_id.encode("ascii")
    return [(b"x-request-id", value)] if also is None else [(b"x-request-id", value), (also, value)]


def _learned(names: tuple[bytes, ...]) -> _Names:
    """Check names that no answer had before. Raises RuntimeError for one that no header can have."""
    for name in names:
        if not name or _NO_NAME.search(name):
            raise RuntimeError("a header name of the response is empty or has characters that HTTP doesn't allow")
    lower = [name.lower() for name in names]
    length_at = lower.index(b"content-length") if b"content-length" in lower else None
    connection_at = lower.index(b"connection") if b"connection" in lower else None
    learned = None if lower == list(names) else lower, length_at, connection_at
    if len(_seen) >= _REMEMBERED:
        _seen.clear()
    _seen[names] = learned
    return learned
