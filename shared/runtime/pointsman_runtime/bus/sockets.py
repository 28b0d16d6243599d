"""The socket of a connection: nats-py's streams until the handshake is over, a bare protocol afterwards."""

# nats-py's transport and asyncio's reader keep what is needed here private; `tests/test_nats_internals.py`
# stands in for the type checker.
# pyright: reportPrivateUsage=false

import asyncio
from collections.abc import Callable

from nats.errors import UnexpectedEOF

from pointsman_runtime.bus.lasting_client import NamedTransport
from pointsman_runtime.bus.wire import Parser, ProtocolViolation


class SocketProtocol(asyncio.Protocol):
    """Feeds the parser from the socket."""

    def __init__(self, parser: Parser, receive: Callable[[bytes, Parser], None]) -> None:
        self._parser = parser
        self._receive = receive
        self.transport: asyncio.WriteTransport | None = None
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        try:
            self._receive(data, self._parser)
        except ProtocolViolation as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or UnexpectedEOF())

    def _end(self, error: Exception) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        if self.transport is not None:
            self.transport.abort()


class HandoverTransport(NamedTransport):
    """nats-py's transport until the handshake is over; then the socket belongs to `SocketProtocol`."""

    @property
    def socket(self) -> asyncio.WriteTransport:
        """The transport of the handshake."""
        if self._io_writer is None:
            raise RuntimeError("the handshake comes first")
        return self._io_writer.transport

    def hand_over(self, protocol: SocketProtocol) -> bytes:
        """Give the socket to `protocol`; returns the bytes that were read ahead."""
        # asyncio's own stubs leave it out.
        ahead = bytes(self._io_reader._buffer) if self._io_reader is not None else b""  # type: ignore[attr-defined]
        protocol.transport = self.socket
        self.socket.set_protocol(protocol)
        return ahead

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def wait_closed(self) -> None:
        """An aborted socket has nothing to wait for; one turn of the loop reports the loss."""
        await asyncio.sleep(0)
