"""The edge's own process has run out of descriptors, memory or ports: no endpoint is at fault."""

import errno
from typing import Final

from pointsman_core.refusal import Refusal

CODE: Final = "gateway_exhausted"
RETRY_AFTER_S: Final = 1.0
_RESOURCES: Final = {
    errno.EMFILE: "file descriptors of the process",
    errno.ENFILE: "file descriptors of the system",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory for sockets",
    errno.EADDRNOTAVAIL: "local ports",
}


class GatewayExhausted(Refusal):
    """503 with Retry-After. `resource`: in words."""

    def __init__(self, resource: str) -> None:
        super().__init__(
            503,
            "The gateway has no room for another connection at the moment; try again shortly.",
            type="server_error",
            code=CODE,
            retry_after_s=RETRY_AFTER_S,
            dropped_reason="rejected-exhausted",
            detail=f"the gateway has run out of {resource}",
        )
        self.resource = resource


def exhausted(error: BaseException) -> GatewayExhausted | None:
    """The client's error if this process has run out of something, rather than the other end being at fault."""
    if isinstance(error, MemoryError):
        return GatewayExhausted("memory")
    # The resolver's errors have negative numbers of their own.
    resource = _RESOURCES.get(error.errno or 0) if isinstance(error, OSError) else None
    return None if resource is None else GatewayExhausted(resource)
