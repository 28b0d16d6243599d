"""`destination-header`: tells a proxy where the request goes (Endpoint Picker Protocol 004)."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import HeaderEdit
from pointsman_plugins.scheduling.points import PreRequest
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Selection

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"
KEPT: Final = 4096
"""Headers that are written once: all orders of four among eight endpoints, and some more."""


class DestinationHeader(PreRequest):
    """`x-gateway-destination-endpoint: host:port[,host:port…]`, the choice first, then the fallbacks."""

    type_name = "destination-header"

    def setup(self) -> None:
        self._epoch = -1
        self._written: dict[tuple[int, ...], tuple[HeaderEdit]] = {}
        """By the rows of the endpoints."""

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        run = selection.primary
        fleet = run.candidates.fleet
        if self._epoch != fleet.epoch or len(self._written) >= KEPT:
            self._epoch = fleet.epoch
            self._written.clear()
        rows = tuple(run.chosen)
        written = self._written.get(rows)
        if written is None:
            value = ",".join([fleet.workers[row].address for row in rows])
            written = self._written[rows] = (HeaderEdit(name=DESTINATION_HEADER, value=value),)
        return written
