"""An event as it is kept."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import ValidationError

from pointsman_contracts import headers
from pointsman_contracts.message import Part
from pointsman_contracts.response import ResponseCompleted


class Entry(NamedTuple):
    """One event of the stream."""

    key: str
    """What it is told from every other by, however often it comes."""
    request_id: str | None
    """None for an event that is about no request, or that can't be read."""
    at_ms: int
    type: str
    body: bytes
    """As it was published."""
    completed: ResponseCompleted | None
    """The event, when it is the end of a request."""


class _Head(Part):
    request_id: str | None = None
    at_ms: int | None = None


def entry(given: Mapping[str, str], body: bytes, position: str, stored_ms: int) -> Entry | None:
    """From a message's headers and body; None when it isn't an event that can be read.

    `position` names it where its publisher gave it no id; `stored_ms` is when the stream got it.
    """
    kind = given.get(headers.TYPE, "")
    try:
        completed = ResponseCompleted.decode(body) if kind == ResponseCompleted.address.type_id else None
        head = completed or _Head.__pydantic_validator__.validate_json(body)
    except ValidationError:
        return None
    at_ms = stored_ms if head.at_ms is None else head.at_ms
    return Entry(given.get(headers.MESSAGE_ID) or position, head.request_id, at_ms, kind, body, completed)
