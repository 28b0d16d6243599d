"""The NATS connection of the journey: nats-py for handshake, credentials, TLS, server pool and pings; own
code where nats-py costs too much per message or gives up too early.

Differences from `nats.aio.client.Client`, and their reasons:

- A message goes from the socket through `wire.Parser` to its receiver in one call. nats-py takes a reader
  coroutine, an `asyncio.Queue` and a task per subscription for it, about 20 µs of CPU.
- `publish` is a plain function, the outbox's: one write per turn of the event loop. nats-py wakes a flusher task.
- It reconnects for ever (`lasting_client.py`) with full jitter (`backoff.py`). nats-py waits a fixed time.
- A lost connection is aborted. nats-py waits for the unsent rest to leave, which never happens when the server
  is stopped.

`tests/test_nats_internals.py` fails when the parts of nats-py that this file overrides or calls change.
"""

# The overridden parts of nats-py are private by name; the test above stands in for the type checker.
# pyright: reportPrivateUsage=false

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from nats.aio.client import Client, Srv

from pointsman_runtime.bus.backoff import CAP_S, OUTSTANDING_PINGS, PING_INTERVAL_S, full_jitter
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.errors import BusDisconnected
from pointsman_runtime.bus.event_keeper import EventKeeper
from pointsman_runtime.bus.lasting_client import LastingClient, connection_words
from pointsman_runtime.bus.outbox import Outbox
from pointsman_runtime.bus.sockets import HandoverTransport, SocketProtocol
from pointsman_runtime.bus.wire import CONTROL_LINE_LIMIT, Intake, Parser, Receiver
from pointsman_runtime.reaching.tls_files import TlsFiles
from pointsman_runtime.telling.lag import LAG
from pointsman_runtime.telling.logs import Log

MOST_FAILURES: Final = 16
"""Reasons that are logged for one lost connection: a server may write what it likes."""

_log = Log("bus")


class Login(Protocol):
    """How to log in; everything None on a server without accounts."""

    @property
    def user(self) -> str | None: ...
    @property
    def password(self) -> str | None: ...
    @property
    def token(self) -> str | None: ...
    @property
    def credentials_file(self) -> str | None: ...


class Connection(LastingClient):
    """One connection. Implements `pointsman_runtime.bus.link.Link`."""

    def __init__(
        self,
        servers: list[str],
        *,
        name: str,
        login: Login | None = None,
        tls: TlsFiles | None = None,
        echo: bool = False,
    ) -> None:
        """`echo`: whether its own messages reach its own subscriptions."""
        super().__init__(tls)
        self._echo = echo
        self._servers = servers
        self._client_name = name
        self._login = login
        self._receivers: dict[bytes, Receiver] = {}
        self._intakes: dict[bytes, Intake] = {}
        self._interests: dict[int, tuple[str, str]] = {}
        self._attempts = 0
        self._began = -math.inf
        self._protocol: SocketProtocol | None = None
        self._outbox = Outbox()
        self.publish = self._outbox.publish
        self.publish_relaxed = self._outbox.publish_relaxed
        self.publish_all = self._outbox.publish_all
        self._work: list[Callable[[], None]] = []
        self._failures: set[str] | None = None
        """Reasons of failed tries, logged since the connection was lost; None while it isn't."""
        self._asked: dict[asyncio.Future[Any], float] = {}
        """When each ping was sent that the server hasn't answered."""
        self._opening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_connected: Callable[[], None] = _nothing
        self.on_disconnected: Callable[[str], None] = _ignored
        self.on_refused: Callable[[str], None] = _ignored

    @property
    def connected(self) -> bool:
        return self._status == Client.CONNECTED and self._protocol is not None

    @property
    def reason(self) -> str:
        return self._outbox.reason

    def allow_haste(self, allowed: bool) -> None:
        self._outbox.hasty = allowed

    def hasten(self) -> None:
        self._outbox.hasten()

    def await_event(self, headers: str, done: Callable[[], None]) -> None:
        self._outbox.await_event(headers, done)

    def keep_events(self, keeper: EventKeeper) -> None:
        """Hold relaxed messages until the stream has them. Called before `open`."""
        self._outbox.keeper = keeper
        self.subscribe(f"{keeper.inbox}.*", keeper.receive_answer)

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_task(self._open())

    # As `Link` has it: nats-py's is a coroutine.
    def subscribe(self, subject: str, receiver: Receiver, queue: str = "") -> int:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        sid = self._new_interest(subject, queue)
        self._receivers[b"%d" % sid] = receiver
        return sid

    def gather(self, subject: str, intake: Intake) -> int:
        sid = self._new_interest(subject, "")
        self._intakes[b"%d" % sid] = intake
        return sid

    def _new_interest(self, subject: str, queue: str) -> int:
        self._sid += 1
        self._interests[self._sid] = (subject, queue)
        if self.connected:
            self._outbox.put(f"SUB {subject} {queue} {self._sid}\r\n".encode())
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        self.stop_delivery(sid)
        self._receivers.pop(b"%d" % sid, None)
        self._intakes.pop(b"%d" % sid, None)

    def stop_delivery(self, sid: int) -> None:
        if self._interests.pop(sid, None) is not None and self.connected:
            self._outbox.put(f"UNSUB {sid}\r\n".encode())

    if TYPE_CHECKING:  # the outbox's own, a call less for each message

        def publish(  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
            self, subject: str, payload: bytes, reply: str = "", headers: bytes = b""
        ) -> None: ...

    def soon(self, work: Callable[[], None]) -> None:
        if self._outbox.held:
            self._work.append(work)
        elif self._loop is not None:
            self._loop.call_soon(work)

    def when_taken(self, work: Callable[[], object]) -> None:
        if self.connected:
            self._ping().add_done_callback(lambda _: work())

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - as in nats-py
        if not self.connected:
            raise BusDisconnected(self.reason)
        lost = cast("SocketProtocol", self._protocol).lost
        pong = self._ping()
        # The caller waits for the answer to know that everything before it was sent.
        self._outbox.write_all()
        await asyncio.wait([pong, lost], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            raise BusDisconnected(self.reason)
        if not pong.done():
            raise TimeoutError(f"the server did not answer within {timeout:g} s")

    async def settle(self, within_s: float) -> bool:
        """Wait until every event is confirmed, at most so long; whether each is."""
        if (keeper := self._outbox.keeper) is None:
            return True
        self._outbox.write_all()
        return await keeper.wait_until_settled(within_s)

    async def close(self) -> None:
        if self._opening is not None and not self._opening.done():
            await end_all([self._opening])
        if self.connected:
            with contextlib.suppress(BusDisconnected, TimeoutError):  # gone already: nothing left to send to
                await self.flush(1.0)
        if (keeper := self._outbox.keeper) is not None:
            keeper.close()
        self._outbox.detach_transport("closed")
        await super().close()
        self._outbox.reason = "closed"

    async def _open(self) -> None:
        login = self._login
        await self.connect(
            self._servers,
            name=self._client_name,
            error_cb=self._note_failure,
            disconnected_cb=self._note_disconnected,
            reconnected_cb=self._note_connected,
            max_reconnect_attempts=-1,
            # nats-py sleeps for it and says `int`.
            ping_interval=PING_INTERVAL_S,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            max_outstanding_pings=OUTSTANDING_PINGS,
            no_echo=not self._echo,
            user=login.user if login else None,
            password=login.password if login else None,
            token=login.token if login else None,
            user_credentials=login.credentials_file if login else None,
        )
        await self._note_connected()

    async def _select_next_server(self) -> None:
        """Take the servers in turn, each try after a jittered wait; the first try of a life doesn't wait."""
        while True:
            server = self._server_pool.pop(0)
            self._server_pool.append(server)
            if self._attempts or server.did_connect:
                await asyncio.sleep(full_jitter(self._attempts))
            self._attempts += 1
            try:
                await self._connect_to_server(server)
            except (OSError, TimeoutError) as error:
                await self._note_failure(error)
                continue
            self._current_server = server
            return

    async def _connect_to_server(self, s: Srv) -> None:
        self._close_transport()
        self._transport = HandoverTransport(self._names)
        await self._transport.connect(
            s.uri, buffer_size=CONTROL_LINE_LIMIT, connect_timeout=self.options["connect_timeout"]
        )

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        self._began = time.monotonic()
        self._asked.clear()
        transport = cast("HandoverTransport", self._transport)
        self._protocol = SocketProtocol(Parser(self._receivers, self, self._intakes), self.receive)
        rest = transport.hand_over(self._protocol)
        self._outbox.attach_transport(transport.socket, self._max_payload)
        for sid, (subject, queue) in self._interests.items():
            self._outbox.put(f"SUB {subject} {queue} {sid}\r\n".encode())
        self._outbox.write()
        self._protocol.data_received(rest)

    async def _read_loop(self) -> None:
        """Runs as nats-py's reading task: waits for the end of the connection, which the protocol reports."""
        protocol = self._protocol
        if protocol is not None:
            error = await protocol.lost
            await self._process_op_err(error)

    async def _flusher(self) -> None:
        """nats-py counts on a living flusher task; writing is the outbox's work."""
        protocol = self._protocol
        if protocol is not None:
            await asyncio.wait([protocol.lost])

    async def _process_op_err(self, e: Exception) -> None:
        self._protocol = None
        if time.monotonic() - self._began > CAP_S:  # one that ends at once is a failed try
            self._attempts = 0
        self._outbox.detach_transport(connection_words(e))
        await super()._process_op_err(e)

    async def _note_failure(self, error: Exception) -> None:
        reason = self._outbox.reason = connection_words(error)
        failures = self._failures
        if failures is not None and reason not in failures and len(failures) < MOST_FAILURES:
            failures.add(reason)
            _log.warning("bus_unreachable", reason=reason, hint="connecting is retried")

    async def _note_disconnected(self) -> None:
        if self._failures is None:
            self._failures = set()
        self.on_disconnected(self.reason)

    async def _note_connected(self) -> None:
        self._outbox.reason = ""
        self._failures = None
        self.on_connected()

    def receive(self, data: bytes, parser: Parser) -> None:
        """Parse the bytes of one read, call the handlers, and write their messages: one turn of the
        event loop for it all, where a callback for each step would take three. Raises ProtocolViolation."""
        # Whatever a server sends shows that it lives; its answer to a ping may be behind megabytes.
        self._pings_outstanding = 0
        self._outbox.held = True
        try:
            parser.parse_bytes(data)
            while self._work:
                work, self._work = self._work, []
                for one in work:
                    one()
        finally:
            self._outbox.held = False
            self._outbox.write()

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:  # noqa: ARG002 - order is kept
        self._outbox.put(cmd)

    async def _flush_pending(self, force_flush: bool = False) -> None:  # noqa: ARG002 - as above
        self._outbox.write()

    async def _send_ping(self, future: "asyncio.Future[Any] | None" = None) -> None:
        self._ping(future)
        self._outbox.write_all()

    def _ping(self, future: "asyncio.Future[Any] | None" = None) -> "asyncio.Future[Any]":
        """Returns the future of the answer; it stays pending when the connection is lost."""
        waiting = cast("list[asyncio.Future[Any]]", self._pongs)  # pyright: ignore[reportUnknownMemberType] - nats-py says `List`
        loop = asyncio.get_running_loop()
        pong = future or loop.create_future()
        waiting.append(pong)
        now = loop.time()
        self._asked[pong] = now
        # A server that answers everything late is still connected.
        self.options["max_outstanding_pings"] = OUTSTANDING_PINGS + math.ceil(LAG.slack_s(now) / PING_INTERVAL_S)
        self._outbox.put(b"PING\r\n")
        return pong

    def on_ping(self) -> None:
        self._outbox.put(b"PONG\r\n")

    def on_pong(self) -> None:
        waiting = cast("list[asyncio.Future[Any]]", self._pongs)  # pyright: ignore[reportUnknownMemberType] - nats-py says `List`
        if waiting:
            pong = waiting.pop(0)
            if (asked := self._asked.pop(pong, None)) is not None:
                now = asyncio.get_running_loop().time()
                LAG.note_lag(now - asked, now)
            if not pong.done():
                pong.set_result(True)
        self._pings_outstanding = 0

    def on_info(self, document: bytes) -> None:
        info = cast("dict[str, Any]", json.loads(document))
        self._max_payload = self._outbox.max_payload = int(info.get("max_payload", self._max_payload))
        self._info_task = asyncio.get_running_loop().create_task(self._process_info(info))

    def on_error(self, text: str) -> None:
        """The server closes the connection itself where it must."""
        if "permissions violation" in text.lower():
            self.on_refused(text)
        else:
            self._outbox.reason = text


def _nothing() -> None:
    return None


def _ignored(reason: str) -> None:
    del reason
