"""Headers of the request that is sent: its destination, the scores, its prefill worker and its rank."""

import json
from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import HeaderEdit
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import PreRequest
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Selection
from pointsman_scheduler.plugins.handlers.disaggregated import ENCODE, PREFILL

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"
SCORES_HEADER: Final = "x-gateway-destination-endpoint-scores"
KEPT: Final = 4096
"""Size of the cache of headers: all orders of four among eight endpoints, and some more."""


class DestinationHeader(PreRequest):
    """`x-gateway-destination-endpoint: host:port[,host:port…]`, the choice first, then the fallbacks."""

    type_name = "destination-header"

    def setup(self) -> None:
        self._epoch = -1
        self._written: dict[tuple[int, ...], tuple[HeaderEdit]] = {}
        """Headers by the rows of their endpoints."""

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        run = selection.primary
        fleet = run.candidates.fleet
        if self._epoch != fleet.epoch:
            self._epoch = fleet.epoch
            self._written.clear()
        rows = tuple(run.chosen)
        written = self._written.get(rows)
        if written is None:
            if len(self._written) >= KEPT:
                self._written.clear()
            value = ",".join([fleet.workers[row].address for row in rows if fleet.workers[row].address])
            written = self._written[rows] = (HeaderEdit(name=DESTINATION_HEADER, value=value or None),)
        return written


class EndpointScores(PreRequest):
    """`x-gateway-destination-endpoint-scores`: a JSON object, `host:port` → weighted sum of the scores, of every
    endpoint that passed the filters. Behind Envoy the scores become dynamic metadata of the same name, for its logs and
    filters (as `--emit-endpoint-scores` of llm-d-router 0.10)."""

    type_name = "endpoint-scores"

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        del request
        run = selection.primary
        if run.scores is None:
            return ()
        totals = [round(float(total), 6) for total in run.scores[-1]]
        found = {
            worker.address: total
            for worker, total in zip(run.candidates.workers(), totals, strict=True)
            if worker.address
        }
        return (HeaderEdit(name=SCORES_HEADER, value=json.dumps(found, separators=(",", ":"))),)


PREFILL_HEADER: Final = "x-prefiller-host-port"
ENCODE_HEADER: Final = "x-encoder-hosts-ports"
PREFILL_RANK_HEADER: Final = "x-prefiller-rank"


class PrefillHeader(PreRequest):
    """`x-prefiller-host-port` and `x-encoder-hosts-ports` for the sidecar of the endpoint that answers. Removed when
    that endpoint does all itself, so that a client can't set them."""

    type_name = "prefill-header"

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        return (
            HeaderEdit(name=PREFILL_HEADER, value=_addresses(selection, PREFILL)),
            HeaderEdit(name=ENCODE_HEADER, value=_addresses(selection, ENCODE)),
            *_prefill_rank(selection),
        )


def _prefill_rank(selection: Selection) -> tuple[HeaderEdit, ...]:
    """The rank of the first prefill worker, and the number of its engine's, as `1/8`; nothing for one that isn't a
    rank."""
    run = selection.legs.get(PREFILL)
    if run is None:
        return ()
    first = run.candidates.fleet.workers[run.chosen[0]].registration
    return () if first.rank is None else (HeaderEdit(name=PREFILL_RANK_HEADER, value=f"{first.rank}/{first.ranks}"),)


def _addresses(selection: Selection, leg: str) -> str | None:
    run = selection.legs.get(leg)
    if run is None:
        return None
    workers = run.candidates.fleet.workers
    return ",".join([workers[row].address for row in run.chosen if workers[row].address]) or None


class RankHeaderParams(Params):
    header: str = "x-data-parallel-rank"
    """The header that vLLM reads the rank from."""


class RankHeader(PreRequest[RankHeaderParams]):
    """The data-parallel rank that the engine should use; removed when the engine chooses."""

    type_name = "rank-header"

    def setup(self) -> None:
        self._header = self.params.header.lower()

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        rank = selection.rank
        return (HeaderEdit(name=self._header, value=None if rank is None else str(rank)),)
