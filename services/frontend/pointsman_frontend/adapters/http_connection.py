"""One HTTP/1.1 connection of a client: an asyncio protocol around httptools, which uvicorn's server accepts and ends.

It bounds heads in length and time, answers in OpenAI's shape where the bytes aren't HTTP, calls the application back
when a client hangs up, and writes an answer once. uvicorn's own connection does none of these and costs a request twice
as much (docs/adr/0016-an-http-connection-of-our-own.md).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from operator import itemgetter
from typing import Any, ClassVar, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from pointsman_frontend.adapters.connection_bounds import LINGER_S, Bounds, refusal
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_frontend.adapters.http_turn import READ_AHEAD, Turn
from pointsman_frontend.domain.heads import head_without_offer, target_of

GATHERED: Final = 65536
"""More bytes than this are written at once, so that a slow reader is noticed."""
_NAME: Final = itemgetter(0)

App = Callable[[Turn], Coroutine[object, object, None]]
"""Serves one request; it isn't ASGI, whose messages would cost a request 20 calls."""


def bounded(bounds: Bounds, gathered: GatheredWrites) -> type[asyncio.Protocol]:
    """The class of connections for uvicorn, with these bounds, whose answers leave with `gathered`."""

    class Bounded(_Connection):
        limits = bounds
        writes = gathered

    return Bounded


class _Phase(Enum):
    HEAD = auto()
    """Waiting for a head, or the rest of one."""
    SERVED = auto()
    """The application has the request."""
    SWALLOWING = auto()
    """Answered before its body was there, e.g. with 413: the rest is read and thrown away, for a while."""
    IDLE = auto()
    """Between requests; the connection is closed when that takes too long."""
    REFUSED = auto()


class _Connection(asyncio.Protocol):
    limits: ClassVar[Bounds]
    writes: ClassVar[GatheredWrites]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        del app_state
        if not config.loaded:
            config.load()
        self._app = cast("App", config.loaded_app)  # pyright: ignore[reportUnknownMemberType] - partly untyped
        self._loop = _loop or asyncio.get_running_loop()
        self._state = server_state
        self._idle_s = config.timeout_keep_alive
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = self._new_parser()
        self.peer = ""
        self.trusted = False
        self._dates: list[tuple[bytes, bytes]] = []
        self._date_lines = b""
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self._reading = True
        self.paused = False
        self._resumed: asyncio.Future[None] | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._turn: Turn | None = None
        """The last request whose head was complete."""
        self._waiting: deque[Turn] = deque()
        self._task: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        """Ends the wait of the task for a request, or for the end of the connection."""
        self._lost = False
        self._phase = _Phase.HEAD
        self._since = 0.0
        """Loop time at which the phase began."""
        self._head_bytes = 0
        """Since the message began, or since the last of its body."""
        self._brought_body = False
        self._message_open = False
        self._timer: asyncio.TimerHandle | None = None
        self.hung_up: Callable[[], None] | None = None
        self._fault = "This is not a valid HTTP/1.1 request."

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - asyncio's do, too
        self._transport = transport
        self._state.connections.add(self)  # pyright: ignore[reportArgumentType] - any object with `shutdown`
        client = get_remote_addr(transport)
        self.peer = client[0] if client else ""
        self.trusted = self.limits.trusts(self.peer)
        self._since = self._loop.time()
        self._timer = self._loop.call_later(self.limits.head_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._state.connections.discard(self)  # pyright: ignore[reportArgumentType]
        if self._timer is not None:
            self._timer.cancel()
        self._gathered.clear()
        for turn in (self._turn, *self._waiting):
            if turn is not None and not turn.complete:
                turn.disconnect()
        self._waiting.clear()
        self._wake()
        self.resume_writing()
        if exc is None:
            self._transport.close()
        self._call_hang_up()

    def eof_received(self) -> None:
        """The client has sent its last byte; the connection closes after the bytes that were written."""
        self._flush()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.REFUSED:
            return
        self._brought_body = False
        idle = self._phase is _Phase.IDLE
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                self._ignore(stopped, data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # of upgrades only CONNECT is left
            self._refuse(400, self._fault, "invalid_http")
            return
        if idle and self._phase is _Phase.IDLE:
            # Empty lines, or the end of an unwanted body, and no request began.
            self._phase = _Phase.HEAD
            self._since = self._loop.time()
            self._head_bytes = 0
        elif self._brought_body:
            self._head_bytes = 0
        elif self._message_open or self._phase is _Phase.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(431, f"The headers have more than {self.limits.head_bytes} bytes.", "headers_too_large")

    def shutdown(self) -> None:
        """Take no further request, but for the first of a new connection, which may be on its way."""
        if self._turn is None and self._idle_s:
            self._loop.call_later(LINGER_S, self.shutdown)
        elif self._turn is None or self._turn.complete:
            self.close()
        else:
            self._turn.keep_alive = False
        self._idle_s = 0

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        self._since = self._loop.time()
        self._head_bytes = 0
        self._message_open = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return
        headers = self._headers
        version = parser.get_http_version()
        if version != "1.1" and any(name == b"transfer-encoding" for name, _ in headers):
            # A proxy of HTTP/1.0 in front knows no chunks, and sees the body end elsewhere (RFC 9112, 6.1).
            self._fault = "A body in chunks needs HTTP/1.1; send its content-length."
            raise ValueError(self._fault)
        self._phase = _Phase.SERVED
        turn = Turn(
            self,
            parser.get_method().decode("ascii"),
            target_of(self._url),
            headers,
            version,
            keep_alive=version != "1.0" and parser.should_keep_alive() and self._idle_s > 0,
        )
        if b"expect" in map(_NAME, headers):
            turn.expects_continue = any(n == b"expect" and v.lower() == b"100-continue" for n, v in headers)
        # The turn keeps what it has; trailers, which must not pass for headers (RFC 9110, 6.5.1), are dropped.
        self._headers = []
        before, self._turn = self._turn, turn
        if self._waiting or not (before is None or before.complete):
            # The client didn't wait for the answer before.
            self._pause_reading()
        self._waiting.append(turn)
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._serve())
            self._state.tasks.add(self._task)
            self._task.add_done_callback(self._state.tasks.discard)
        else:
            self._wake()

    def on_body(self, body: bytes) -> None:
        self._brought_body = True
        turn = self._turn
        if turn is not None and not turn.complete:
            turn.body.append(body)
            turn.size += len(body)
            if turn.waiter is not None:
                turn.wake()
            if turn.size > READ_AHEAD:
                self._pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._message_open = False
        if self._phase is _Phase.SWALLOWING:
            self._phase = _Phase.IDLE
            self._since = self._loop.time()
        turn = self._turn
        if turn is not None:
            turn.more_body = False
            if turn.waiter is not None:
                turn.wake()

    def write(self, data: bytes) -> None:
        """Send at the end of the event loop's turn, in order: head and body leave in one system call."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._gathered_size += len(data)
        if self._gathered_size > GATHERED:
            self._flush()

    def finish(self, data: bytes, *, keep_alive: bool) -> None:
        """Send the end of an answer, behind the bytes that still wait: at once, or with other answers of this turn."""
        transport = self._transport
        if data:
            self._gathered.append(data)
        self.writes.add(self._flush)
        self.hung_up = None
        self._state.total_requests += 1
        if not keep_alive:
            self._flush()
            transport.close()
        if transport.is_closing():
            return
        if not self._reading:
            self.resume_reading()
        if not self._waiting and self._phase is _Phase.SERVED:
            self._phase = _Phase.SWALLOWING if self._message_open else _Phase.IDLE
            self._since = self._loop.time()

    def close(self) -> None:
        """Close after the bytes that were written."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def resume_reading(self) -> None:
        """Read on, after a pause."""
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    async def writable(self) -> None:
        """Wait until the client has read enough, or is gone."""
        while self.paused:
            self._resumed = self._loop.create_future()
            await self._resumed

    def date_headers(self) -> bytes:
        """The headers of every answer, as lines; uvicorn renews its list of them each second."""
        dates = self._state.default_headers
        if dates is not self._dates:
            self._dates = dates
            self._date_lines = b"".join([b"%b: %b\r\n" % header for header in dates])
        return self._date_lines

    async def _serve(self) -> None:
        """Serve the connection's requests one after the other. A task for each of them would cost as much as reading
        its head."""
        while not self._lost:
            if not self._waiting or self._transport.is_closing():
                self._woken = self._loop.create_future()
                await self._woken
                self.writes.to_come -= 1
                continue
            turn = self._waiting.popleft()
            turn.task = self._task
            try:
                await self._app(turn)
            except Exception as error:  # noqa: BLE001 - the client must have an answer, and the next one too
                turn.failed(error)
            except BaseException as error:  # also if the connection's task is cancelled: its turn must end
                turn.failed(error)
                raise
            else:
                if not turn.complete:
                    await turn.served()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
            self.writes.to_come += 1

    def _flush(self) -> None:
        gathered = self._gathered
        if gathered:
            self._gathered = []
            self._gathered_size = 0
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # A request that a client sent before the answer to `connection: close` reached it is answered, not refused.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _ignore(self, offer: httptools.HttpParserUpgrade, data: bytes) -> None:
        """Ignore offers to upgrade, as RFC 9110 (7.8) allows and Java's client, which begins with one, expects.
        The parser takes such a head for the last of HTTP, reports the message as complete and stops behind it.
        A new one is given the head without the offer and goes on from there."""
        rest = memoryview(data)
        while True:
            rest = rest[offer.args[0] :]
            method, version = self._parser.get_method(), self._parser.get_http_version()
            self._parser = self._new_parser()
            self._parser.feed_data(head_without_offer(method, self._url, version, self._headers))
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as another:
                offer = another
            else:
                return

    def _call_hang_up(self) -> None:
        hung_up, self.hung_up = self.hung_up, None
        if hung_up is not None:
            hung_up()

    def _look(self) -> None:
        """The connection's one timer; a timer for each request would cost more than it bounds."""
        phase = self._phase
        patience = self._idle_s if phase is _Phase.IDLE else self.limits.head_s
        left = patience if phase is _Phase.SERVED else self._since + patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(min(left, self.limits.head_s), self._look)
        elif phase is _Phase.HEAD and self._message_open:
            self._refuse(408, f"No complete head came within {self.limits.head_s:g} s.", "request_timeout")
        else:
            self.close()

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._phase = _Phase.REFUSED
        self.limits.count(code)
        turn = self._turn
        if turn is not None and not turn.complete:
            turn.disconnect()
            self._call_hang_up()
            if turn.started:
                self.close()  # a second answer must not mix with the one under way
                return
        self.write(refusal(status, message, code, self.limits.new_id()))
        self._flush()
        self._transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self._transport.close)
