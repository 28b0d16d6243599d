"""Sends requests to engines over pooled connections."""

import asyncio
import codecs
import time
from collections.abc import Collection
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pointsman_core.config import EngineTls
from pointsman_core.engine_url import unix_address
from pointsman_edge.deciding.policy import EngineLimits
from pointsman_edge.sending.own_limits import exhausted
from pointsman_frontend.adapters.engine_connection import EndpointFailed, EngineConnection
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_runtime.reaching.engine_tls import engine_context
from pointsman_runtime.reaching.host_names import HostNames, NamedAddress, is_name

STALE_WITHIN_S: Final = 2.0
"""A reused connection that ends this soon without a byte had been closed by the engine for being idle. A busy machine
notices the end late."""
_SWEPT_S: Final = 1.0
"""A sweep that comes so long after the one before it is late: this process stood still."""
STOOD_STILL_S: Final = 0.02
"""A timer that is later than this shows that the process got no CPU time, or had too much to do."""


_IDNA: Final = codecs.lookup("idna")
"""Loaded here: with the first request it would take a descriptor."""


class Origin(msgspec.Struct, frozen=True):
    """Where an endpoint's URL leads."""

    host: str
    port: int
    tls: bool
    host_header: bytes
    path: bytes
    """Put before the request's own path."""
    named: bool
    """Whether the host is a name, which has to be looked up."""
    socket: str | None = None
    """Path of the Unix socket that takes the place of host and port."""


@lru_cache(maxsize=2048)
def origin_of(url: str) -> Origin:
    """Take an endpoint's base URL apart. Raises EndpointFailed when nothing can be reached by it."""
    try:
        unix = unix_address(url)
        if unix is not None:
            return Origin(
                "localhost", 0, False, b"localhost", unix.path.encode("ascii"), named=False, socket=unix.socket
            )
        parts = urlsplit(url)
        port = parts.port
        host_header = parts.netloc.rpartition("@")[2].encode("ascii")
        path = parts.path.rstrip("/").encode("ascii")
        _IDNA.encode(parts.hostname or "")  # as the resolver does, with an error that isn't one of the network
    except ValueError:
        raise EndpointFailed("refused", "its URL is invalid") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EndpointFailed("refused", "its URL doesn't begin with http://, https:// or unix:")
    tls = parts.scheme == "https"
    named = is_name(parts.hostname)
    return Origin(parts.hostname, port or (443 if tls else 80), tls, host_header, path=path, named=named)


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request to one endpoint."""

    request_id: str
    worker: str
    url: str
    """Base URL of the endpoint."""
    head: bytes
    body: bytes
    tls: EngineTls | None
    """Its pool's, for an https:// URL."""
    movable: bool
    """Another endpoint may take the request if this one makes no progress before its first byte."""


class EngineClient:
    """Connections by origin. The one used last is used next, so that surplus ones grow idle and are closed."""

    def __init__(self, writes: GatheredWrites, *, idle_s: float, idle_connections: int) -> None:
        """`writes`: those that requests leave with."""
        self._writes = writes
        self._idle_s = idle_s
        self._idle_connections = idle_connections
        self._names = HostNames()
        self._idle: dict[str, list[EngineConnection]] = {}
        """By URL."""
        self._busy: dict[EngineConnection, Call] = {}
        self._swept_at = 0.0

    async def send(self, call: Call, limits: EngineLimits) -> EngineConnection:
        """Send one request and wait for the first byte of its answer. Raises EndpointFailed, and GatewayExhausted.

        The caller reads the answer and then gives the connection back with `release`, whatever happened.
        """
        idle = self._idle.get(call.url)
        reused: EngineConnection | None = None
        while idle:
            reused = idle.pop()
            if reused.usable:
                break
            reused.close()
            reused = None
        while True:
            connection = reused or await self._connect(call, limits.connect_s)
            self._busy[connection] = call
            try:
                await connection.ask(call.head, call.body, limits)
            # Also if the caller is cancelled: the engine must stop generating.
            except BaseException as error:
                self._busy.pop(connection, None)
                connection.close()
                failed = isinstance(error, EndpointFailed) and error.outcome == "failed" and connection.untouched
                if reused is None or not failed or connection.silent_s(time.monotonic()) > STALE_WITHIN_S:
                    raise
                reused = None
            else:
                return connection
            finally:
                connection.note_resumption()

    def release_connection(self, connection: EngineConnection) -> None:
        """Done with an answer: keep the connection if it can serve again; otherwise it is cut, which makes the
        engine stop."""
        call = self._busy.pop(connection)
        if connection.finish():
            idle = self._idle.get(call.url)
            if idle is None:
                idle = self._idle[call.url] = []
            if len(idle) < self._idle_connections:
                idle.append(connection)
            else:
                connection.close()

    def leave(self, worker: str, request_ids: Collection[str], reason: str, silent: Collection[str] = ()) -> list[str]:
        """The worker makes no progress: end those attempts of these requests there that wait for their first byte and
        that another endpoint may take. `silent`: requests whose answer has no word yet, although bytes may have come,
        e.g. comments. Returns the ids of the ended requests."""
        left = {
            connection: call.request_id
            for connection, call in self._busy.items()
            if call.worker == worker
            and call.request_id in request_ids
            and call.movable
            and connection.may_leave(says_nothing=call.request_id in silent)
        }
        for connection in left:
            connection.abandon_attempt(reason)
        return list(left.values())

    def find_calls(self, worker: str) -> list[tuple[EngineConnection, Call]]:
        """The requests that a worker has, and their connections."""
        return [(connection, call) for connection, call in self._busy.items() if call.worker == worker]

    def sweep(self) -> None:
        """End attempts that have been silent, and close connections that were idle, for too long, or whose name has
        moved to another address.

        Called a few times a second; a timer for each request costs more.
        """
        now = time.monotonic()
        late, self._swept_at = now - self._swept_at > _SWEPT_S, now
        if not late:
            # After a late one, the loop reads first: the kernel may have bytes of each engine.
            for connection in list(self._busy):
                connection.check_silence(now)
        for connection in self._busy:
            if connection.named is not None:
                connection.outdated = self._is_outdated(connection.named)
        before = now - self._idle_s
        for url, idle in list(self._idle.items()):
            kept: list[EngineConnection] = []
            for connection in idle:
                outdated = connection.named is not None and self._is_outdated(connection.named)
                if connection.usable and connection.heard_at > before and not outdated:
                    kept.append(connection)
                else:
                    connection.close()
            if kept:
                self._idle[url] = kept
            else:
                del self._idle[url]

    def close(self) -> None:
        """Close every idle connection."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    def _is_outdated(self, named: NamedAddress) -> bool:
        self._names.refresh_name(named.host, named.port)
        return self._names.is_former(named)

    async def _connect(self, call: Call, limit_s: float, *, again: bool = False) -> EngineConnection:
        """A limit that is noticed late shows that this process stood still, and nothing of the engine."""
        loop = asyncio.get_running_loop()
        due = loop.time() + limit_s
        try:
            async with asyncio.timeout_at(due):
                return await self._open_connection(origin_of(call.url), call.tls)
        except TimeoutError:
            if loop.time() - due > STOOD_STILL_S and not again:
                return await self._connect(call, limit_s, again=True)
            raise EndpointFailed("refused", f"no connection within {limit_s:g} s") from None
        except OSError as error:
            own = exhausted(error)
            if own is not None:
                raise own from error
            raise EndpointFailed("refused", error.strerror or str(error) or type(error).__name__) from None

    async def _open_connection(self, origin: Origin, tls: EngineTls | None) -> EngineConnection:
        loop = asyncio.get_running_loop()

        def make() -> EngineConnection:
            return EngineConnection(self._writes)

        if origin.socket is not None:
            _, connection = await loop.create_unix_connection(make, origin.socket)
            return connection
        context = engine_context(tls) if origin.tls else None
        server_name = tls.server_name if origin.tls and tls is not None else None
        if not origin.named:
            _, connection = await loop.create_connection(
                make, origin.host, origin.port, ssl=context, server_hostname=server_name
            )
            return connection
        opened = await self._names.open_socket(origin.host, origin.port)
        try:
            address = opened.getpeername()[0]
            server_name = server_name or origin.host if origin.tls else None
            _, connection = await loop.create_connection(make, sock=opened, ssl=context, server_hostname=server_name)
        # Also if the caller is cancelled: the socket must not stay open.
        except BaseException:
            opened.close()
            raise
        connection.named = NamedAddress(origin.host, origin.port, address)
        return connection
