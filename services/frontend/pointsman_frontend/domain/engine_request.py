"""The request as an engine gets it."""

import re
from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import HeaderEdit

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def request_head(
    *,
    target: bytes,
    host: bytes,
    length: int,
    headers: Sequence[tuple[bytes, bytes]],
    request_id: str,
    traceparent: str | None,
) -> bytes:
    """Request line and headers of a POST of `length` bytes."""
    lines = [
        b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
        % (target, host, length, request_id.encode("ascii"))
    ]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if traceparent is not None:
        lines.append(b"traceparent: %b\r\n" % traceparent.encode("ascii"))
    lines.append(b"\r\n")
    return b"".join(lines)


def edited_headers(headers: list[tuple[bytes, bytes]], edits: Sequence[HeaderEdit]) -> list[tuple[bytes, bytes]]:
    """Set and remove headers. A value may come from a request, so control characters become spaces."""
    if not edits:
        return headers
    changed = {edit.name.lower().encode("ascii", "replace") for edit in edits}
    kept = [header for header in headers if header[0] not in changed]
    kept += [
        (edit.name.lower().encode("ascii"), _CONTROL.sub(" ", edit.value).encode("utf-8", "replace"))
        for edit in edits
        if edit.value is not None and _NAME.fullmatch(edit.name)
    ]
    return kept
