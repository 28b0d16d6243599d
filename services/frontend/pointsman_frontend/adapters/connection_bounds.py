"""The bounds of every connection, and the answer to a refused one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pointsman_apis.errors import openai_error
from pointsman_core.refusal import Refusal

LINGER_S: Final = 1.0
"""A refused connection reads and drops its peer's bytes this long: a reset would hide the reason from the peer."""
_PHRASES: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a connection until it has sent a request, and the proxies that it trusts."""

    head_bytes: int
    """Length of request line and headers, and of what isn't body after them: chunk sizes and trailers."""
    head_s: float
    """From the first byte of a head (or the connection's beginning) to its end."""
    new_id: Callable[[], str]
    """Makes the request id of a refusal."""
    count: Callable[[str], None]
    """Takes the reason of each refusal."""
    trusts: Callable[[str], bool] = lambda _peer: False
    """Whether a peer is a proxy that may name its client."""


def refusal(status: int, message: str, code: str, request_id: str) -> bytes:
    """The whole answer, head and body; the connection closes after it. `status` is 400, 408 or 431."""
    body = openai_error(Refusal(status, message, code=code))
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"x-request-id: %b\r\nconnection: close\r\n\r\n%b"
        % (status, _PHRASES[status], len(body), request_id.encode("ascii"), body)
    )
