"""The request as an engine gets it."""

from collections.abc import Sequence


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
