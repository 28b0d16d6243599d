"""Snapshots of earlier versions: their objects had a copy of each field of the message that they hold now."""

from collections.abc import Mapping
from typing import Final

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import Part, read_fields
from pointsman_contracts.scheduling import ReservationChange
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold


def _flat(message: type[Part], kind: type[ScheduleRequest | Hold]) -> frozenset[str]:
    return frozenset(message.__struct_fields__) - frozenset(kind.__struct_fields__)


FLAT_FIELDS: Final[Mapping[type, frozenset[str]]] = {
    ScheduleRequest: _flat(RequestFacts, ScheduleRequest),
    Hold: _flat(ReservationChange, Hold),
}
"""Class → the fields that its objects had, and that are in a message now."""


def nest(made: object, former: dict[str, object]) -> None:
    """Give the object the message with these fields."""
    match made:
        case ScheduleRequest():
            made.facts = read_fields(RequestFacts, {"api": "", **former})
        case Hold():
            own = {"op": "reserve", "worker": made.worker.name, "boot_id": made.worker.registration.boot_id}
            made.change = read_fields(ReservationChange, own | former)
        case _:
            raise TypeError(f"{type(made).__qualname__} has no message")
