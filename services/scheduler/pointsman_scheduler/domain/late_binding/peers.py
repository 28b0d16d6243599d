"""The requests that wait at the other schedulers of a pool.

Each scheduler plans the requests of all, and binds its own: with the same knowledge all make one plan.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_contracts.journey import RequestFacts
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.late_binding.unbound import PeerRequest, Unbound

FORGOTTEN_MS: Final = 250.0
"""A report of waiting requests is valid for this long."""
TELL_AGAIN_MS: Final = 100.0
"""A scheduler repeats the report after this long without a change."""
SHARING_MS: Final = 10_000.0
"""A scheduler that published within this time counts as one that shares the requests of the pool."""


class Peers:
    """Times are milliseconds of this scheduler's clock."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        """Scheduler → when its last message came."""
        self._reported: dict[str, tuple[float, dict[RequestKey, PeerRequest]]] = {}
        """Scheduler → when its last report came, and the requests that wait there."""

    def heard(self, scheduler: str, now: float) -> None:
        """A message of this scheduler came."""
        self._heard[scheduler] = now

    def silent(self, scheduler: str, now: float) -> bool:
        """Whether nothing was heard of this scheduler for half the time after which it isn't counted."""
        return now - self._heard.get(scheduler, -math.inf) > SHARING_MS / 2.0

    def count(self, now: float) -> int:
        """Number of other schedulers."""
        return sum([now - at <= SHARING_MS for at in self._heard.values()]) if self._heard else 0

    def report(self, scheduler: str, requests: Sequence[PeerRequest], now: float) -> bool:
        """Take a report of all requests that wait there. Returns whether any of them is new."""
        self.heard(scheduler, now)
        _, former = self._reported.get(scheduler, (0.0, {}))
        found: dict[RequestKey, PeerRequest] = {}
        for each in requests:
            known = former.get(each.key)
            found[each.key] = each if known is None or each.blocks else each._replace(blocks=known.blocks)
        self._reported[scheduler] = now, found
        return not found.keys() <= former.keys()

    def knows(self, request: RequestKey) -> bool:
        """Whether another scheduler's last report has this request."""
        return any(request in found for _, found in self._reported.values())

    def waiting(self, names: Sequence[str], now: float) -> list[Unbound]:
        """The requests, without those for unknown workers; each call makes them anew. `names`: of the workers, by
        row."""
        waiting: list[Unbound] = []
        if not self._reported:
            return waiting
        rows = {name: row for row, name in enumerate(names)}
        for at, found in self._reported.values():
            if now - at > FORGOTTEN_MS:
                continue
            for peer in found.values():
                row = rows.get(peer.worker)
                if row is not None:
                    waiting.append(_unbound(peer, row))
        return waiting

    def forget(self) -> None:
        """The engines of the pool changed."""
        self._reported.clear()


def _unbound(peer: PeerRequest, row: int) -> Unbound:
    request = ScheduleRequest(
        peer.request_id,
        RequestFacts(
            api="",
            prompt_tokens=peer.prompt,
            max_output_tokens=peer.max_output,
            block_tokens=peer.block_tokens,
            priority=peer.priority,
        ),
        edge=peer.edge,
        blocks=np.frombuffer(peer.blocks, "<u8"),
    )
    # With its blocks, the prefixes known here say more.
    held = 0.0 if peer.blocks else max(0.0, peer.prompt - peer.uncached)
    return Unbound(
        request=request,
        since=peer.since,
        rows=None,
        row=row,
        uses=0.0,
        uncached=peer.uncached,
        latest=peer.latest,
        reported=(row, held),
    )
