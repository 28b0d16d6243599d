"""Envoy's messages."""

from enum import IntEnum
from typing import Final, NamedTuple

from pointsman_epp_adapter.domain.mutation import Header

_VIA_UPSTREAM: Final = "via_upstream"
"""`response.code_details` of an answer that isn't Envoy's own."""


class BodyMode(IntEnum):
    """How Envoy sends a body; numbers of `ProcessingMode.BodySendMode`."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class RequestHead(NamedTuple):
    """The headers of a request, and its attributes from Envoy."""

    headers: list[Header]
    end: bool
    """Whether there is no body."""
    peer: str
    """Address of Envoy's client; empty unless Envoy is configured to send the attribute `source.address`."""
    subset: tuple[str, ...] | None
    """Endpoints that Envoy restricts the choice to."""
    request_mode: BodyMode
    response_mode: BodyMode

    @property
    def sent(self) -> list[Header]:
        """The client's own headers, without what HTTP/2 has among them."""
        return [header for header in self.headers if not header[0].startswith(b":")]


class ResponseHead(NamedTuple):
    """The headers of a response."""

    headers: list[Header]
    end: bool
    served: str
    """Address of the endpoint that answered; empty if Envoy doesn't report it."""
    details: str
    """Envoy's `response.code_details`; empty unless it is configured to send them."""
    mode: BodyMode | None
    """How Envoy sends the body. None: as stated with the request's headers."""

    @property
    def status(self) -> int:
        """The HTTP status; 0 when there is none."""
        status = dict(self.headers).get(b":status", b"")
        return int(status) if status.isdigit() else 0

    @property
    def envoys_own(self) -> bool:
        """Whether Envoy, one of its filters or a route of it answered instead of an endpoint."""
        return self.details not in ("", _VIA_UPSTREAM)


class Body(NamedTuple):
    """A piece of a body."""

    of_request: bool
    data: bytes
    end: bool


class Trailers(NamedTuple):
    """They end a body."""

    of_request: bool


class Unknown(NamedTuple):
    """A message of a later version of the protocol."""


Event = RequestHead | ResponseHead | Body | Trailers | Unknown
