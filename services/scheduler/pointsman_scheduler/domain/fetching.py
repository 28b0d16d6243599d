"""The part of a prompt that the chosen worker fetches from a tier below its device, on the books."""

from collections.abc import Mapping

from msgspec.structs import replace

from pointsman_contracts.scheduling import ReservationChange
from pointsman_plugins.scheduling.arrays import Floats


def with_fetched(change: ReservationChange, fetched: Mapping[str, Floats], row: int) -> ReservationChange:
    """The reservation of the worker at this row, whose fetched tokens aren't computed."""
    tokens = {tier: int(column.item(row)) for tier, column in fetched.items() if column.item(row)}
    if not tokens:
        return change
    uncached = max(0, change.uncached_tokens - sum(tokens.values()))
    return replace(change, fetched=tokens, uncached_tokens=uncached)
