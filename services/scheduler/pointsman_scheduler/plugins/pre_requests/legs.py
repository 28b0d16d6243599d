"""Who does a part of the work beside the endpoint that answers: `prefill-header`, `rank-header`."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from pointsman_contracts.journey import HeaderEdit
from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.outcome import Selection
from pointsman_scheduler.domain.points import PreRequest
from pointsman_scheduler.domain.request import ScheduleRequest
from pointsman_scheduler.plugins.handlers.disaggregated import ENCODE, PREFILL

PREFILL_HEADER: Final = "x-prefiller-host-port"
ENCODE_HEADER: Final = "x-encoder-hosts-ports"


class PrefillHeader(PreRequest):
    """`x-prefiller-host-port` and `x-encoder-hosts-ports` for the sidecar of the endpoint that answers; removed when
    that one does all itself, so that a client can't set them."""

    type_name: ClassVar[str] = "prefill-header"

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        return (
            HeaderEdit(name=PREFILL_HEADER, value=_addresses(selection, PREFILL)),
            HeaderEdit(name=ENCODE_HEADER, value=_addresses(selection, ENCODE)),
        )


def _addresses(selection: Selection, leg: str) -> str | None:
    run = selection.legs.get(leg)
    if run is None:
        return None
    workers = run.candidates.fleet.workers
    return ",".join([workers[row].address for row in run.chosen])


class RankHeaderParams(Params):
    header: str = "x-data-parallel-rank"
    """The header that vLLM reads the rank from."""


class RankHeader(PreRequest):
    """The data-parallel rank that the engine should use; removed when the engine chooses."""

    type_name: ClassVar[str] = "rank-header"
    params_type: ClassVar[type[Params]] = RankHeaderParams

    def __init__(self, name: str, params: RankHeaderParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._header: Final = params.header.lower()

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        rank = selection.rank
        return (HeaderEdit(name=self._header, value=None if rank is None else str(rank)),)
