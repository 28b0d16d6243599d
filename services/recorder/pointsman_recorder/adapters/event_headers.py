"""The headers of an event that a recorder reads: its type, its id and its trace."""

from typing import Final

from pointsman_contracts.headers import MESSAGE_ID, TYPE
from pointsman_runtime.bus.message_headers import TRACEPARENT_NAME, find

_TYPE_NAME: Final = f"\r\n{TYPE}:".encode()
_ID_NAME: Final = f"\r\n{MESSAGE_ID}:".encode()
_TRACE_DIGITS: Final = 32

EventHeaders = tuple[str, str, str | None]
"""Type, id, and id of the trace: empty texts and None where there is none."""


def read_headers(block: bytes) -> EventHeaders:
    kind, name = find(block, _TYPE_NAME) or "", find(block, _ID_NAME) or ""
    trace = find(block, TRACEPARENT_NAME)
    return kind, name, None if trace is None else _trace_of(trace)


def _trace_of(traceparent: str) -> str | None:
    """The trace's id of a header (https://www.w3.org/TR/trace-context/#traceparent-header); None without one."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == _TRACE_DIGITS else None
