"""The gRPC server: the external processor and gRPC health on one port, and health alone on another where configured."""

import asyncio
import socket
from typing import Final

from pointsman_epp_adapter.adapters.certificates import CertificateFiles
from pointsman_epp_adapter.adapters.grpc_connection import Calls, GrpcConnection
from pointsman_epp_adapter.adapters.grpc_health import GrpcHealth
from pointsman_epp_adapter.adapters.processor import Processor
from pointsman_epp_adapter.adapters.wire import METHOD
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.telling.logs import Log

_PROBES: Final = 100
"""Calls at a time on the port for health alone."""
_FAREWELL_S: Final = 1.0
"""How long a client has for each of its parts of the end: a round trip to hear of it, one to read the last answers, and
one that TLS wants."""
_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A client that vanishes is noticed within a minute, and its calls end. Seconds, a count,
milliseconds; a system that hasn't one of these waits as it is set to."""


_log = Log("ext_proc")


class GrpcServer:
    """Serves between `start` and `stop`. `stop` gives open streams `grace_s` seconds and then cancels them."""

    def __init__(self, processor: Processor, stopping: asyncio.Event, settings: EppAdapterSettings) -> None:
        self.url = ""
        self.health_port: int | None = None
        """The port for health alone."""
        self._stopping = stopping
        self._settings = settings
        self._server: asyncio.Server | None = None
        self._health = GrpcHealth()
        self._probed: asyncio.Server | None = None
        self._probes = Calls(self._health.methods, _PROBES)
        self._calls = Calls({METHOD: processor.process, **self._health.methods}, settings.max_streams)

    async def start(self) -> None:
        """Listen. Raises OSError when it can't listen there, or can't read a certificate."""
        settings = self._settings
        tls = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls = CertificateFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca).build_context()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: GrpcConnection(self._calls), settings.host, settings.port, ssl=tls, backlog=1024
        )
        for listening in self._server.sockets:  # accepted ones inherit it
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _ALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    listening.setsockopt(socket.IPPROTO_TCP, option, value)
        if settings.health_port is not None:
            self._probed = await asyncio.get_running_loop().create_server(
                lambda: GrpcConnection(self._probes), settings.host, settings.health_port
            )
            self.health_port = self._probed.sockets[0].getsockname()[1]
            _log.info("health_listening", host=settings.host, port=self.health_port)
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"grpc{'s' if tls else ''}://{host}:{port}"

    def tell_health(self, *, serving: bool) -> None:
        """Set the health that gRPC reports from now on."""
        self._health.set_health(serving=serving)

    async def stop(self) -> None:
        """Take no new stream, let the open ones end within the grace."""
        self._stopping.set()
        self._health.end_watches()
        if self._server is not None:
            self._server.close()
        connections = tuple(self._calls.connections)
        for connection in connections:
            connection.refuse_more()
        if connections:
            await asyncio.wait([connection.told for connection in connections], timeout=_FAREWELL_S)
        if self._calls.open:
            await asyncio.wait(self._calls.open, timeout=self._settings.drain_timeout_s)
        for call in tuple(self._calls.open):
            call.cancel()
        if self._calls.open:
            await asyncio.wait(self._calls.open)
        connections = tuple(self._calls.connections)
        if connections:
            # A client that was told closes its connection itself once it has read the last answers. Closed by this
            # side, a connection loses answers that the client hasn't read (RFC 9112, section 9.6, has the reason).
            await asyncio.wait([connection.lost for connection in connections], timeout=_FAREWELL_S)
        connections = tuple(self._calls.connections)
        for connection in connections:
            connection.close()
        if connections:
            _, left = await asyncio.wait([connection.lost for connection in connections], timeout=_FAREWELL_S)
            for connection in tuple(self._calls.connections):
                connection.abort()
            if left:
                await asyncio.wait(left)
        await self._end_probes()

    async def _end_probes(self) -> None:
        """The probes' port closes last: until then they read that no new request is taken."""
        if self._probed is None:
            return
        self._probed.close()
        for call in tuple(self._probes.open):
            call.cancel()
        if self._probes.open:
            await asyncio.wait(self._probes.open)
        connections = tuple(self._probes.connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.lost for connection in connections])
