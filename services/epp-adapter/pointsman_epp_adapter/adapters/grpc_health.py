"""gRPC health: https://github.com/grpc/grpc/blob/master/doc/health-checking.md."""

# grpcio-health-checking has no type information.
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false, reportUnknownArgumentType=false

import asyncio
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pointsman_epp_adapter.adapters.wire import SERVICE

NAMES: Final = ("", SERVICE, "inference-extension")
"""Services that health is told of; the last is what charts of other endpoint pickers ask for."""


class GrpcHealth:
    """Answers `Check` and `Watch`."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._serving: bool | None = None
        self._telling: asyncio.Task[None] | None = None

    def join(self, server: grpc.aio.Server) -> None:
        """Be one of its services."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def tell(self, *, serving: bool) -> None:
        """What is answered from here on."""
        if serving != self._serving:
            self._serving = serving
            self._telling = asyncio.get_running_loop().create_task(self._tell(serving=serving))

    async def end(self) -> None:
        """Not serving any more, whatever is told."""
        await self._servicer.enter_graceful_shutdown()

    async def _tell(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in NAMES:
            await self._servicer.set(name, status)
