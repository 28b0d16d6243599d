"""The engines that drain, as snapshots tell of them, and when what they have moves elsewhere. Pure; times are monotonic
seconds."""

import math
from typing import Final, NamedTuple

from pointsman_contracts.pool import PoolSnapshot

OVER_S: Final = 2.0
"""The requests of one engine move within this time, one after the other: their prompts are computed again elsewhere."""
KEPT_S: Final = 60.0
"""An engine that is in no snapshot any more may still be at work on streams."""


class OverdueDrain(NamedTuple):
    """An engine whose time is over."""

    pool: str
    worker: str
    since_s: float


class DrainingEngines:
    """Those of every pool. A deadline holds without further snapshots."""

    def __init__(self) -> None:
        self._moves_at: dict[tuple[str, str], float] = {}

    def take_snapshot(self, snapshot: PoolSnapshot, now: float) -> None:
        """A pool's state arrived."""
        for view in snapshot.workers:
            notice, key = view.draining, (snapshot.pool, view.worker)
            if notice is not None:
                left_ms, known = notice.left_ms, self._moves_at.get(key, math.inf)
                if left_ms == 0 and known <= now:
                    # Its time has been over since then: the requests left move at the pace that began there.
                    continue
                self._moves_at[key] = math.inf if left_ms is None else now + left_ms / 1000
            elif self._moves_at:
                self._moves_at.pop(key, None)

    def is_draining(self, pool: str, worker: str) -> bool:
        return (pool, worker) in self._moves_at

    def find_overdue(self, now: float) -> list[OverdueDrain]:
        """The engines whose requests move now."""
        if not self._moves_at:
            return []
        found = [OverdueDrain(*key, now - at) for key, at in self._moves_at.items() if at <= now]
        for each in found:
            # Snapshots go on telling of one that is there: its time is over, and was not long ago.
            if each.since_s > KEPT_S:
                del self._moves_at[each.pool, each.worker]
        return found


def part_to_move(requests: int, since_s: float, tick_s: float) -> int:
    """How many of the requests that an engine still has move in this tick, so that all have moved after `OVER_S`."""
    ticks_left = max(0.0, OVER_S - since_s) / tick_s
    return math.ceil(requests / (ticks_left + 1))
