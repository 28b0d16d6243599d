"""The head of a request to an engine, and the headers of its answer that reach the client."""

from collections.abc import Sequence
from typing import Final

from pointsman_edge.taking_in.request_headers import HOP_BY_HOP, internal


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
    lines = [
        b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
        % (method, target, host, length, request_id.encode("ascii"))
    ]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if traceparent is not None:
        lines.append(b"traceparent: %b\r\n" % traceparent.encode("ascii"))
    lines.append(b"\r\n")
    return b"".join(lines)


_OURS: Final = frozenset({b"content-length", b"date", b"server", b"x-request-id", b"request-id"})
"""Written by the edge."""
_REMEMBERED: Final = 1024


class ResponseHeaderRules:
    """The rules; names are classified once each."""

    def __init__(self) -> None:
        self._passes: dict[bytes, bool] = {}

    def pass_on(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The (lower-case) headers for the client, in order."""
        passes = self._passes
        kept: list[tuple[bytes, bytes]] = []
        for header in headers:
            passed = passes.get(header[0])
            if passed is None:
                passed = self._classify(header[0])
            if passed:
                kept.append(header)
        return kept

    def _classify(self, name: bytes) -> bool:
        if len(self._passes) >= _REMEMBERED:
            self._passes.clear()
        passed = name not in HOP_BY_HOP and name not in _OURS and not internal(name)
        self._passes[name] = passed
        return passed
