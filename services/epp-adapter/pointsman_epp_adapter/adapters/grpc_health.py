"""gRPC health: https://github.com/grpc/grpc/blob/master/doc/health-checking.md."""

# grpcio-health-checking has no type information.
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false

import asyncio
from collections.abc import Mapping
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListResponse

from pointsman_epp_adapter.adapters.grpc_call import Call, CallFailed, Status
from pointsman_epp_adapter.adapters.grpc_connection import Method
from pointsman_epp_adapter.adapters.wire import SERVICE

LIVENESS: Final = "liveness"
"""Served for as long as there is an answer at all."""
NAMES: Final = ("", SERVICE, "inference-extension", "readiness", LIVENESS)
"""Services whose health can be asked for; charts of other endpoint pickers ask for the last three."""
_HEALTH: Final = b"/grpc.health.v1.Health/"
_SERVING: Final = HealthCheckResponse(status=HealthCheckResponse.SERVING)
_NOT_SERVING: Final = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
_UNKNOWN: Final = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)


class GrpcHealth:
    """Answers `Check`, `List` and `Watch`."""

    def __init__(self) -> None:
        self.methods: Final[Mapping[bytes, Method]] = {
            _HEALTH + b"Check": self._check,
            _HEALTH + b"List": self._list,
            _HEALTH + b"Watch": self._watch,
        }
        self._serving = False
        self._ended = False
        self._news = asyncio.Event()

    def set_health(self, *, serving: bool) -> None:
        """Set the health that is reported from now on."""
        if serving != self._serving and not self._ended:
            self._serving = serving
            self._notify_watchers()

    def end_watches(self) -> None:
        """Report NOT_SERVING from now on, and end every watch."""
        self._serving, self._ended = False, True
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        told, self._news = self._news, asyncio.Event()
        told.set()

    async def _check(self, call: Call) -> None:
        name = await _asked(call)
        if name not in NAMES:
            raise CallFailed(
                Status.NOT_FOUND, f"Unknown service; this server knows {', '.join(repr(known) for known in NAMES)}."
            )
        await call.write(self._status(name))

    async def _list(self, call: Call) -> None:
        await call.read()
        answer = HealthListResponse()
        for name in NAMES:
            answer.statuses[name].MergeFromString(self._status(name))
        await call.write(answer.SerializeToString())

    async def _watch(self, call: Call) -> None:
        """Send every change until the client cancels its call."""
        name = await _asked(call)
        while True:
            news = self._news
            await call.write(self._status(name) if name in NAMES else _UNKNOWN.SerializeToString())
            if self._ended:
                return
            await news.wait()

    def _status(self, name: str) -> bytes:
        return (_SERVING if self._serving or name == LIVENESS else _NOT_SERVING).SerializeToString()


async def _asked(call: Call) -> str:
    return HealthCheckRequest.FromString(await call.read() or b"").service
