"""The head of a request to an engine, and the headers of its answer that reach the client."""

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter
from typing import Final

from pointsman_edge.taking_in.request_headers import HOP_BY_HOP, internal

_NAME: Final = itemgetter(0)
_LINE: Final = b"%b: %b\r\n".__mod__


def request_head(
    *,
    method: bytes,
    target: bytes,
    host: bytes,
    length: int,
    headers: Sequence[tuple[bytes, bytes]],
    request_id: str,
    traceparent: str | None,
) -> bytes:
    """Request line and headers of a request with a body of `length` bytes."""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n" % (
        method,
        target,
        host,
        length,
        request_id.encode("ascii"),
        b"".join(map(_LINE, headers)),
        b"" if traceparent is None else b"traceparent: %b\r\n" % traceparent.encode("ascii"),
    )


_OURS: Final = frozenset({b"content-length", b"date", b"server", b"x-request-id", b"request-id"})
"""Written by the edge."""
_REMEMBERED: Final = 256


class ResponseHeaderRules:
    """The rules. Names are classified once each list of them, since an engine's answers differ in values alone."""

    def __init__(self) -> None:
        self._passes: dict[tuple[bytes, ...], list[bool]] = {}

    def pass_on(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The (lower-case) headers for the client, in order."""
        names = tuple(map(_NAME, headers))
        passes = self._passes.get(names)
        if passes is None:
            if len(self._passes) >= _REMEMBERED:
                self._passes.clear()
            passes = [name not in HOP_BY_HOP and name not in _OURS and not internal(name) for name in names]
            self._passes[names] = passes
        return list(compress(headers, passes))
