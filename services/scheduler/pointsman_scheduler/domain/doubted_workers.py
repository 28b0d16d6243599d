"""Tells workers that are broken from requests that have the same answer everywhere.

Routers whose circuit breakers took clients' errors for their workers' lost whole fleets (sgl-project/sglang #25811).
"""

from collections.abc import Collection
from statistics import median_low
from typing import Final

from pointsman_plugins.scheduling.outliers import FORGIVEN_AFTER_S, LEAST_FAILURES, WORSE_BY
from pointsman_plugins.scheduling.worker import NEVER, Worker

DOUBTS: Final = {
    "empty": "an answer without a word",
    "repeating": "an answer that ends with one text over and over",
    "refusing": "a refusal",
}
"""Ends that may be the worker's fault or the request's, where no peer was asked; each in words."""


class DoubtedWorkers:
    """The workers of a pool that are ejected for such ends alone."""

    def __init__(self) -> None:
        self._out: dict[Worker, tuple[float, list[Worker]]] = {}
        """The part of their requests that had failed when they were ejected, and the peers at which none had."""
        self.acquitted_until = NEVER
        """The requests are at fault: until then such ends count against no worker."""

    def compare(self, worker: Worker, present: Collection[Worker], now: float, *, new: bool) -> Collection[Worker]:
        """One more such end has counted against `worker`; `new`: which was ejected for it. Returns the workers that
        aren't at fault: while they are ejected, their requests go elsewhere, and peers have as many such ends then."""
        shares = {each: _share(each, now) for each in present}
        share = _share(worker, now)
        usual = median_low([shares[each] for each in present if not each.standing.ejected] or [0.0])
        many = worker.standing.tally.count_results(now)[1] >= LEAST_FAILURES
        out = {each: then for each, then in self._out.items() if each.present and each.standing.ejected}
        followed = {
            each
            for each, (before, well) in out.items()
            if many and max(usual, share if worker in well else 0.0) >= before - WORSE_BY
        }
        if new:
            out[worker] = share, [each for each in present if not shares[each]]
            if followed:
                followed.add(worker)
        self._out = {each: then for each, then in out.items() if each not in followed}
        if followed:
            self.acquitted_until = now + FORGIVEN_AFTER_S
        return followed


def _share(worker: Worker, now: float) -> float:
    good, bad = worker.standing.tally.count_results(now)
    return bad / max(1, good + bad)
