"""Envoy's messages."""

from enum import IntEnum
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from typing import Final, NamedTuple

from pointsman_epp_adapter.domain.mutation import Header

_VIA_UPSTREAM: Final = "via_upstream"
"""`response.code_details` of an answer that isn't Envoy's own."""
_NAME: Final = itemgetter(0)


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
    def sent_headers(self) -> list[Header]:
        """The client's own headers, without what HTTP/2 has among them."""
        return list(compress(self.headers, _clients_own(self.header_names)))

    @property
    def header_names(self) -> tuple[bytes, ...]:
        """The headers' names, in their order."""
        return tuple(map(_NAME, self.headers))


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


@lru_cache(maxsize=1024)
def _clients_own(names: tuple[bytes, ...]) -> tuple[bool, ...]:
    """Which of the headers with these names HTTP/2 hasn't among them. A client's requests have the same ones."""
    return tuple([not name.startswith(b":") for name in names])


Event = RequestHead | ResponseHead | Body | Trailers | Unknown
