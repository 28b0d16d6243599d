"""nats-py's client, for as long as the process lives: it closes for good on most errors that a server reports, such as
a login that was taken back for a moment, and on errors that it doesn't expect while it reconnects."""

# The overridden parts of nats-py are private by name; `tests/test_nats_internals.py` stands in for the type checker.
# pyright: reportPrivateUsage=false

import asyncio
import ssl
import time
from typing import Any, Final, cast
from urllib.parse import ParseResult

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError

from pointsman_runtime.bus.backoff import CAP_S
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.reaching.host_names import HostNames, is_name
from pointsman_runtime.reaching.tls_files import TlsFiles, words_of

FAREWELL_S: Final = 1.0
"""How long the end of a connection may take before it is cut."""


class NamedTransport(TcpTransport):
    """nats-py's transport, which reaches a server by any address of its name: nats-py tries the first one alone, for
    all of its time."""

    def __init__(self, names: HostNames) -> None:
        super().__init__()
        self._names = names

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        if uri.hostname is None or uri.port is None or not is_name(uri.hostname):
            await super().connect(uri, buffer_size, connect_timeout)  # type: ignore[arg-type] - a float serves as well
            return
        async with asyncio.timeout(connect_timeout):
            opened = await self._names.open_socket(uri.hostname, uri.port)
            streams = await asyncio.open_connection(sock=opened, limit=buffer_size)
        self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer = streams


class LastingClient(Client):
    """Ends by `close` alone. `error_cb` is called with every error."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        """`tls`: connect by TLS alone; its files are read anew for a new connection once they were renewed."""
        super().__init__()
        self._names = HostNames()
        self._tls = tls

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return super().ssl_context if self._tls is None else self._tls.context("nats_tls_unusable")

    # A file that is half written is read again at the next try. Of one without such a part nats-py takes None, which
    # ends its tries.
    def _read_creds_user_jwt(self, creds: Any) -> bytearray:
        return _there(super()._read_creds_user_jwt(creds))

    def _read_creds_user_nkey(self, creds: Any) -> bytearray:
        return _there(super()._read_creds_user_nkey(creds))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._tls is not None and not info.get("tls_required"):
            if not info.get("tls_available"):
                # nats-py would send the login without TLS.
                raise NatsError("nats: the settings ask for TLS, and the server doesn't offer it")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def close(self) -> None:
        # nats-py cancels its reconnection once, which `wait_for` of Python 3.11 may lose, and not at all where a
        # refused login has closed the client.
        if (reconnection := self._reconnection_task) is not None:
            reconnection.remove_done_callback(self._reconnect_ended)
            await end_all([reconnection])
        await super().close()
        self._close_transport()

    async def _connect_to_server(self, s: Srv) -> None:
        self._close_transport()
        s.last_attempt = time.monotonic()
        self._transport = NamedTransport(self._names)
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        if self._status != Client.CONNECTED:
            # nats-py takes the end of the connection in place of an answer for a login.
            for task in ("_reading_task", "_ping_interval_task", "_flusher_task"):
                cast("asyncio.Task[None]", getattr(self, task)).cancel()
            raise NatsError("nats: the server closed the connection instead of answering the login")
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        if writer is not None and writer.get_extra_info("sslcontext") is not None:
            # As asyncio's own `start_tls` does, and nats-py doesn't. Without it the protocol wants to go on after the
            # end of what it reads, which TLS can't, and asyncio logs a warning. Its stubs leave both out.
            writer._protocol._over_ssl = True  # type: ignore[attr-defined]

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # TLS says goodbye and waits for the answer, which a server that is gone never gives: half a minute in asyncio.
        leaving = asyncio.get_running_loop().call_later(FAREWELL_S, self._abort_transport)
        try:
            await super()._close(status, do_cbs)
        finally:
            leaving.cancel()

    def _abort_transport(self) -> None:
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        if writer is not None:
            writer.transport.abort()

    def _close_transport(self) -> None:
        # nats-py leaves the one whose handshake failed to the garbage collector.
        if self._transport is not None:
            self._transport.close()

    async def _process_err(self, err_msg: str) -> None:
        # Where the server must, it ends the connection itself, which is then made again.
        await self._error_cb(NatsError(f"nats: {err_msg.strip(chr(39))}"))

    async def _process_op_err(self, e: Exception) -> None:
        before = self._reconnection_task
        await super()._process_op_err(e)
        if self._reconnection_task is not None and self._reconnection_task is not before:
            self._reconnection_task.add_done_callback(self._reconnect_ended)

    def _reconnect_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.is_closed:
            self._reconnection_task = asyncio.get_running_loop().create_task(self._reconnect_again(error))
            self._reconnection_task.add_done_callback(self._reconnect_ended)

    async def _reconnect_again(self, error: BaseException) -> None:
        await asyncio.sleep(CAP_S)
        if isinstance(error, Exception):
            await self._error_cb(error)
        await self._attempt_reconnect()


def _there(part: bytearray | None) -> bytearray:
    if not part:
        raise NatsError("nats: the credentials file has no JWT, or no seed")
    return part


def connection_words(error: Exception) -> str:
    """Why a connection was lost or not made."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return words_of(error)
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__
