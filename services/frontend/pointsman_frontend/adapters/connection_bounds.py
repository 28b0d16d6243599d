"""uvicorn's HTTP connection with bounds of its own, which tells when a client hangs up.

uvicorn waits for ever for the rest of a head, takes a head of any length, and answers what isn't HTTP in plain text.
Of a hang-up ASGI tells only who waits for the next message, which costs a task for each request.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pointsman_core.refusal import Refusal
from pointsman_edge.telling.error_body import error_body
from pointsman_frontend.adapters.corked_transport import CorkedTransport
from pointsman_frontend.adapters.until_closed import without_chunks

LINGER_S: Final = 1.0
"""How long a refused connection goes on swallowing what its peer still sends: closing at once would reset it, and
the peer would never read why."""
HANG_UP: Final = "pointsman.hang_up"
"""The ASGI extension by which an application says whom to call when the client of this request hangs up."""
_PHRASES: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may do before it brings a request."""

    head_bytes: int
    """Length of request line and headers, and of what isn't body after them: chunk sizes and trailers."""
    head_s: float
    """From the first byte of a head (or the connection's beginning) to its end."""
    new_id: Callable[[], str]
    """A request id for what is refused here."""
    count: Callable[[str], None]
    """Told the reason of each refusal."""


def bounded(bounds: Bounds) -> type[asyncio.Protocol]:
    """The class of connections for uvicorn, with these bounds."""

    class Bounded(_Connection):
        limits = bounds

    return Bounded


class _Phase(Enum):
    HEAD = auto()
    """Waiting for a head, or the rest of one."""
    SERVED = auto()
    """The application has the request."""
    SWALLOWING = auto()
    """Answered before its body was there, e.g. with 413: the rest is read and thrown away, for a while."""
    IDLE = auto()
    """Between requests; uvicorn closes it when that takes too long."""
    REFUSED = auto()


class _Connection(HttpToolsProtocol):
    limits: ClassVar[Bounds]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._phase = _Phase.HEAD
        self._since = 0.0
        """Loop time at which HEAD or SWALLOWING began."""
        self._head_bytes = 0
        """Since the message began, or since the last of its body."""
        self._brought_body = False
        self._message_open = False
        self._timer: asyncio.TimerHandle | None = None
        self._hung_up: Callable[[], None] | None = None
        self._fault = "This is not a valid HTTP/1.1 request."

    # As uvicorn narrows it.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CorkedTransport(transport, self.loop))
        self._since = self.loop.time()
        self._timer = self.loop.call_later(self.limits.head_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._tell_hang_up()

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.REFUSED:
            return
        self._unset_keepalive_if_required()
        self._brought_body = False
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # of upgrades only CONNECT is left
            self._refuse(400, self._fault, "invalid_http")
            return
        if self._phase is _Phase.IDLE:
            # Empty lines, or the end of an unwanted body: uvicorn has stopped its timer, and no request began.
            self._phase = _Phase.HEAD
            self._since = self.loop.time()
            self._head_bytes = 0
        elif self._brought_body:
            self._head_bytes = 0
        elif self._message_open or self._phase is _Phase.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(431, f"The headers have more than {self.limits.head_bytes} bytes.", "headers_too_large")

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        self._since = self.loop.time()
        self._head_bytes = 0
        self._message_open = True
        super().on_message_begin()
        self.scope["extensions"] = {HANG_UP: {"watch": self._watch}}

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.parser.get_http_version() != "1.1" and any(name == b"transfer-encoding" for name, _ in self.headers):
            # A proxy of HTTP/1.0 in front knows no chunks, and sees the body end elsewhere (RFC 9112, 6.1).
            self._fault = "A body in chunks needs HTTP/1.1; send its content-length."
            raise ValueError(self._fault)
        self._phase = _Phase.SERVED
        super().on_headers_complete()
        # The scope keeps what it has; trailers, which must not pass for headers (RFC 9110, 6.5.1), are for nobody.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._brought_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._message_open = False
        if self._phase is _Phase.SWALLOWING:
            self._phase = _Phase.IDLE
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._hung_up = None
        super().on_response_complete()
        if self._phase is _Phase.SERVED:
            self._phase = _Phase.SWALLOWING if self._message_open else _Phase.IDLE
            self._since = self.loop.time()

    # uvicorn's type of an application is private.
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = cast("Any", without_chunks(app, cycle))
        super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> None:
        """Ignore offers to upgrade, as RFC 9110 (7.8) allows and Java's client, which makes one with every first
        request, expects. The parser has no way to: it takes such a head for the last of HTTP, reports the message as
        complete and stops behind it. A new one is given the head without the offer and goes on from there."""
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as stopped:
                rest = memoryview(rest)[stopped.args[0] :]
                head = self._head_without_offer()
            else:
                return
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode("ascii")
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"%b\r\n\r\n" % b"\r\n".join(lines)

    def _watch(self, hung_up: Callable[[], None]) -> None:
        self._hung_up = hung_up

    def _tell_hang_up(self) -> None:
        hung_up, self._hung_up = self._hung_up, None
        if hung_up is not None:
            hung_up()

    def _look(self) -> None:
        waiting = self._phase in (_Phase.HEAD, _Phase.SWALLOWING)
        left = self._since + self.limits.head_s - self.loop.time() if waiting else self.limits.head_s
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        elif self._phase is _Phase.HEAD and self._message_open:
            self._refuse(408, f"No complete head came within {self.limits.head_s:g} s.", "request_timeout")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._phase = _Phase.REFUSED
        self.limits.count(code)
        # None before the first request, whatever its type says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._tell_hang_up()
            if cycle.response_started:
                self.transport.close()  # a second answer must not mix with the one under way
                return
        body = error_body(Refusal(status, message, code=code))
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"x-request-id: %b\r\nconnection: close\r\n\r\n%b"
            % (status, _PHRASES[status], len(body), self.limits.new_id().encode("ascii"), body)
        )
        self.transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)
