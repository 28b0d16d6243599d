"""One HTTP/1.1 connection to an engine.

A client library would be the largest single cost of the edge (docs/adr/0006-an-http-client-of-our-own.md). This one
does what the edge needs and no more: POST, one request at a time, bodies passed on undecoded as they arrive.
"""

import asyncio
import fcntl
import socket
import sys
import termios
import time
from operator import itemgetter
from typing import Final, cast

import httptools

from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EngineLimits
from pointsman_edge.sending.moving_on import FAILED, STALLED, TIMEOUT, failure_of
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_runtime.reaching.host_names import NamedAddress

LONGEST_HEAD: Final = 65536
"""Bytes of status line and headers, or of what isn't body after them (chunk sizes, trailers), that an engine may send
in a row."""
READ_AHEAD: Final = 262144
"""Bytes that wait for a slow client before reading from the engine pauses."""

_REFUSING: Final = frozenset({*range(300, 400), 502, 503, 504, *range(600, 1000)})
"""Statuses whose bodies aren't for the client: they say that the engine, or a proxy before it, can't answer."""
_NO_ANSWER: Final = frozenset(status for status in range(300, 1000) if failure_of(status) is not None)
"""Statuses by which another endpoint may be asked, which needn't wait for the body."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Headers by which an answer ends before its connection does."""
_NAME: Final = itemgetter(0)
_PROBED: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""After 10 s of silence the kernel probes three times, 5 s apart; sent bytes are given up after 25 s (milliseconds)."""
_PROBES: Final = [(getattr(socket, name), value) for name, value in _PROBED.items() if hasattr(socket, name)]


class EndpointFailed(Exception):
    """An endpoint didn't answer. `outcome` as `Attempt.outcome`; `retry_after_s`: the pause that it asks for."""

    def __init__(
        self, outcome: str, detail: str, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail
        self.status = status
        self.retry_after_s = retry_after_s


class AnswerCutOff(Exception):
    """The engine stopped after the first byte of its answer. `refusal`: the client's error, where a provider gave a
    reason."""

    def __init__(self, detail: str, refusal: Refusal | None = None) -> None:
        super().__init__(detail)
        self.refusal = refusal

    @property
    def outcome(self) -> str:
        """The outcome of the attempt, where nothing of its answer has left."""
        return self.__cause__.outcome if isinstance(self.__cause__, EndpointFailed) else FAILED


class EngineConnection(asyncio.Protocol):
    """Sends one request at a time and keeps what comes back until it is read."""

    def __init__(self, writes: GatheredWrites) -> None:
        """`writes`: those that its requests leave with."""
        self._loop = asyncio.get_running_loop()
        self._writes = writes
        self._request: tuple[bytes, ...] = ()
        """Head and body that weren't sent yet."""
        self._woke = False
        """The task that waits for the answer to begin was woken and hasn't run yet."""
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # Small HTTP servers end the lines of a head with LF alone, which RFC 9112 (2.2) lets a client accept.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._busy = False
        self._failure: Exception | None = None
        self._head_bytes = 0
        self._answering = False
        self._asked_at = 0.0
        self.heard_at = 0.0
        """When the engine sent something last, or the request was sent; monotonic."""
        self._limits: EngineLimits = cast("EngineLimits", None)
        self.status = 0
        """The answer's status; 0 before its head is complete."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        """The whole answer has arrived."""
        self.untouched = True
        """Nothing of an answer has come back."""
        self.named: NamedAddress | None = None
        """Where it leads, if its engine is addressed by a name."""
        self.outdated = False
        """Its name leads elsewhere by now: it isn't used again."""

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._busy and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes, limits: EngineLimits) -> "asyncio.Future[None]":
        """Send a request. The future is done once the first bytes of the answer's body are here, or the answer is
        complete without any. It raises EndpointFailed, also for a status which says that the engine can't answer. Call
        `resumed` when the wait for the future has ended."""
        if self._transport is None:
            raise EndpointFailed(FAILED, "closed by the engine")
        if self._failure is not None:
            raise self._failure
        self._busy = True
        self.status = 0
        self.headers = []
        self._head_bytes = 0
        self.complete = False
        self.untouched = True
        self._answering = False
        self._asked_at = self.heard_at = time.monotonic()
        self._limits = limits
        self._request = head, body
        self._writes.add(self._send)
        began = self._waiter = self._loop.create_future()
        return began

    def _send(self) -> None:
        transport, request = self._transport, self._request
        self._request = ()
        if transport is not None and not transport.is_closing():
            transport.writelines(request)

    def note_resumption(self) -> None:
        """The task that waited for the answer to begin runs again."""
        if self._woke:
            self._woke = False
            self._writes.to_come -= 1

    async def read(self) -> bytes:
        """The next bytes of the body as they arrived, b"" at its end. Raises AnswerCutOff."""
        while not self._chunks:
            if self.complete:
                return b""
            if self._failure is not None:
                raise AnswerCutOff(str(self._failure)) from self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        chunks, self._chunks = self._chunks, []
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def check_silence(self, now: float) -> None:
        """Fail when the engine has been silent for too long; `now` is monotonic."""
        if self._paused or self.complete:
            self.heard_at = now  # the client is slow, not the engine
        elif now > (
            self.heard_at + self._limits.idle_s if self._answering else self._asked_at + self._limits.first_byte_s
        ):
            self._fail(EndpointFailed(TIMEOUT, "silent for too long"))

    @property
    def has_begun(self) -> bool:
        """Whether the first byte of the answer has come, or the kernel has bytes that weren't read yet."""
        return self._answering or _unread(self._transport) > 0

    def may_leave(self, *, says_nothing: bool) -> bool:
        """Whether another endpoint may answer instead. `says_nothing`: all that was read of this answer."""
        return not self.has_begun or (says_nothing and not self._chunks and not _unread(self._transport))

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole, or has failed."""
        return self.complete or self._failure is not None

    def silent_s(self, now: float) -> float:
        """Seconds since the engine last sent anything; `now` is monotonic."""
        return 0.0 if self._paused else now - self.heard_at

    def abandon_attempt(self, detail: str, outcome: str = STALLED) -> None:
        """End the attempt: the engine makes no progress, before its first byte; or it drains (`DRAINED`)."""
        self._fail(EndpointFailed(outcome, detail))

    def finish(self) -> bool:
        """The caller is done with the answer. True when the connection can be used again; otherwise it is
        closed at once, which an engine takes as the client's hanging up."""
        transport = self._transport
        if (
            transport is not None
            and self.complete
            and self._failure is None
            and not self._chunks
            and not self.outdated
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        ):
            self._busy = False
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        _notice_a_dead_host(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            # Unasked bytes: the next answer would be taken for that of the wrong request.
            self.close()
            return
        self.untouched = False
        self.heard_at = time.monotonic()
        chunks = len(self._chunks)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                # The parser's words are its own, and quote nothing; of an upgrade it tells a number.
                words = "it changes the protocol" if isinstance(error, httptools.HttpParserUpgrade) else error
                self._fail(EndpointFailed(FAILED, f"sent invalid HTTP: {words}"))
                return
            # The answer is good; the connection isn't used again.
            self._failure = EndpointFailed(FAILED, "sent more than one response")
        if not self.complete:  # more follows, which may have to wait
            if len(self._chunks) > chunks:
                self._head_bytes = 0
                self._buffered += len(data)
                if self._buffered > READ_AHEAD and not self._paused and self._transport is not None:
                    self._paused = True
                    self._transport.pause_reading()
            else:
                self._head_bytes += len(data)
                if self._head_bytes > LONGEST_HEAD:
                    self._fail(EndpointFailed(FAILED, f"sent more than {LONGEST_HEAD} bytes of headers or trailers"))
                    return
        if self._chunks or self.complete or self.status in _NO_ANSWER:
            if self._waiter is not None:
                self._wake()
            self._answering = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._busy and not self.complete and self._failure is None:
            if self.status and exc is None and _FRAMING.isdisjoint(map(_NAME, self.headers)):
                # The answer ends with the connection.
                self.complete = True
                self._wake()
            else:
                self._fail(EndpointFailed(FAILED, "closed the connection"))

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer, which must not pass for a header (RFC 9110, 6.5.1)
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError("a status below 100")
        if status >= 200:
            self.status = status
        else:  # the real answer follows
            self.headers = []
            self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            if not self._parser.should_keep_alive() and self._transport is not None:
                self._transport.close()

    def _wake(self) -> None:
        """End the wait for the answer to begin, or that of `read`, which reports a failure itself."""
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if self._answering:
            waiter.set_result(None)
            return
        self._woke = True
        self._writes.to_come += 1
        if self.status in _REFUSING:
            waiter.set_exception(EndpointFailed(FAILED, f"answered {self.status}", self.status, self._pause_s()))
        elif self._failure is not None and not (self._chunks or self.complete):
            waiter.set_exception(self._failure)
        else:
            waiter.set_result(None)

    def _pause_s(self) -> float | None:
        """Seconds of the answer's Retry-After; None without it, or for a date."""
        value = dict(self.headers).get(b"retry-after", b"")
        return float(value) if value.isdigit() and len(value) < 6 else None

    def _fail(self, failure: EndpointFailed) -> None:
        if self._failure is None and not self.complete:
            self._failure = failure
        self.close()
        self._wake()


def _unread(transport: asyncio.Transport | None) -> int:
    """Bytes that have come and weren't read."""
    own = None if transport is None else transport.get_extra_info("socket")
    if own is None or own.fileno() < 0:
        return 0
    return int.from_bytes(fcntl.ioctl(own.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def _notice_a_dead_host(own: "socket.socket | None") -> None:
    """Have the kernel end the connection when the other host is gone. Only answers to the kernel's probes tell such a
    host from an engine that computes; where a process merely stands still, its kernel answers."""
    if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            own.setsockopt(socket.IPPROTO_TCP, option, value)
