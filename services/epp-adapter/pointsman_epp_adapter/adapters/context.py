"""The gRPC stream as the rest of the adapter sees it."""

from typing import Protocol

from pointsman_epp_adapter.adapters.wire import Event


class Context(Protocol):
    """One stream of Envoy's."""

    async def read(self) -> Event | object:
        """The next message; `grpc.aio.EOF` when Envoy says no more."""
        ...

    async def write(self, message: bytes) -> None:
        """Send a message."""
        ...
