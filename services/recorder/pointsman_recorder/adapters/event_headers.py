"""The headers of an event that a recorder reads: its type, its id and its trace."""

from typing import Final

from pointsman_contracts.headers import MESSAGE_ID, TYPE
from pointsman_runtime.bus import message_headers

_TYPE_NAME: Final = f"\r\n{TYPE}:".encode()
_ID_NAME: Final = f"\r\n{MESSAGE_ID}:".encode()
_CRLF: Final = b"\r\n"
_MOST_STARTS: Final = 256
_TRACE_DIGITS: Final = 32

EventHeaders = tuple[str, str, str | None]
"""Type, id, and id of the trace: empty texts and None where there is none."""


class HeaderReader:
    """Reads a start of blocks once: most events have their id last, and before it nothing but one of a few types."""

    def __init__(self) -> None:
        self._types: Final[dict[bytes, str]] = {}
        """By the block's start up to the id. No start has a trace in it."""

    def read_headers(self, block: bytes) -> EventHeaders:
        """The headers of a block."""
        start, _, rest = block.partition(_ID_NAME)
        name, _, rest = rest.partition(_CRLF)
        id_is_last = rest == _CRLF
        if id_is_last and (kind := self._types.get(start)) is not None:
            return kind, name.strip().decode("utf-8", "replace"), None
        kind = message_headers.find(block, _TYPE_NAME) or ""
        trace = message_headers.find(block, message_headers.TRACEPARENT_NAME)
        if id_is_last and trace is None and len(self._types) < _MOST_STARTS:
            self._types[start] = kind
        return kind, message_headers.find(block, _ID_NAME) or "", None if trace is None else _trace_of(trace)


def _trace_of(traceparent: str) -> str | None:
    """The trace's id of a header (https://www.w3.org/TR/trace-context/#traceparent-header); None without one."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == _TRACE_DIGITS else None
