"""`destination-header`: tells a proxy where the request goes (Endpoint Picker Protocol 004)."""

from collections.abc import Sequence
from typing import ClassVar, Final

from pointsman_contracts.journey import HeaderEdit
from pointsman_scheduler.domain.outcome import Selection
from pointsman_scheduler.domain.points import PreRequest
from pointsman_scheduler.domain.request import ScheduleRequest

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"


class DestinationHeader(PreRequest):
    """`x-gateway-destination-endpoint: host:port[,host:port…]`, the choice first, then the fallbacks."""

    type_name: ClassVar[str] = "destination-header"

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        run = selection.primary
        workers = run.candidates.fleet.workers
        value = ",".join([workers[row].address for row in run.chosen])
        return (HeaderEdit(name=DESTINATION_HEADER, value=value),)
