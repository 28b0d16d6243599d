"""The events of requests, read by their type."""

from collections.abc import Sequence
from typing import Final, get_args

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.response import (
    AttemptFailed,
    RequestAnswered,
    RequestRejected,
    ResponseCompleted,
    ResponseReviewed,
    ResponseStarted,
)
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.session import SessionMoved

Event = (
    RequestScheduled
    | RequestAnswered
    | RequestRejected
    | ResponseStarted
    | AttemptFailed
    | ResponseCompleted
    | ResponseReviewed
    | SessionMoved
    | MirrorCompared
)

_TYPES: Final[dict[str, type[Event]]] = {kind.address.type_id: kind for kind in get_args(Event)}


def read(type_id: str, body: bytes) -> Event | None:
    """The event of this type in a document; None for an unknown type, or a malformed document."""
    kind = _TYPES.get(type_id)
    if kind is None:
        return None
    try:
        return kind.decode(body)
    except MalformedMessage:
        return None


def edge_of(event: Event) -> str:
    """The edge whose request an event is about."""
    return event.edge if isinstance(event, RequestScheduled | SessionMoved | MirrorCompared) else event.source


def by_edge(found: Sequence[Event]) -> dict[str, list[Event]]:
    """The events of each edge's request, in their order: clients choose ids, and those of two edges may be the same."""
    told: dict[str, list[Event]] = {}
    for event in found:
        told.setdefault(edge_of(event), []).append(event)
    return told
