"""Keeps the journeys of requests that are bound late, and forwards each when the pool binds it."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pointsman_contracts.journey import Journey
from pointsman_contracts.reply import Decision, Parked, Rejection
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_runtime.journey.hop import Hop
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.domain.late_binding import TELL_AGAIN_MS, Bound
from pointsman_scheduler.domain.outcome import Postponed
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.metrics import SchedulerMetrics

PARKED: Final = "it waits for the engine that suits it best"

_log = Log("binding")


Choose = Callable[[Journey, Hop[Journey], float, Bound | None], Decision | Rejection | Postponed]
"""Chooses endpoints for a request. The numbers are its seconds in flow control, and then for its engine."""


class _Kept(NamedTuple):
    journey: Journey
    hop: Hop[Journey]
    queued_s: float
    """Seconds that it waited in flow control."""
    pool: str


class Binding:
    """`decide` is called for each request that flow control lets pass."""

    def __init__(self, pools: Pools, choose: Choose, announcer: DecisionPublisher, metrics: SchedulerMetrics) -> None:
        self._pools: Final = pools
        self._choose: Final = choose
        self._announcer: Final = announcer
        self._metrics: Final = metrics
        self.kept: Final[dict[RequestKey, _Kept]] = {}
        """The requests that wait, in the order in which they came. The caller only reads it."""
        self._timers: dict[str, tuple[asyncio.Handle, float]] = {}
        """The timer of each pool, with the loop time at which it fires."""
        self._told: dict[str, float] = {}
        """Pool → when its waiting requests were last published after a look."""

    def decide(self, journey: Journey, hop: Hop[Journey], queued_s: float) -> Decision | Rejection | Parked:
        """Choose now, or let the request wait until its engine takes it up."""
        if self.kept and (key := (journey.edge, journey.request_id)) in self.kept:
            self.forget(key)  # sent again: only the later journey is answered
        outcome = self._choose(journey, hop, queued_s, None)
        if not isinstance(outcome, Postponed):
            return outcome
        pool = journey.target.pool if journey.target is not None else None
        self.kept[journey.edge, journey.request_id] = _Kept(journey, hop, queued_s, pool or "")
        self._announcer.waiting(pool or "")
        self.stirred(self._pools.of(pool or ""))
        return hop.park(PARKED)

    def stirred(self, pool: PoolScheduler) -> None:
        """Look at the pool in the next turn of the event loop: something happened that may let a request go."""
        self._look(pool, 0.0)

    def forget(self, request: RequestKey) -> None:
        """Drop a request that waits."""
        kept = self.kept.pop(request)
        if self._pools.of(kept.pool).binder.cancel(request):
            self._announcer.waiting(kept.pool)

    def edge_gone(self, edge: str) -> None:
        """An edge died, and its clients' connections with it."""
        for request in [request for request in self.kept if request[0] == edge]:
            self.forget(request)

    def close(self) -> None:
        """Send every waiting request to the engine that is best now: flow control has already let it pass."""
        for timer, _ in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for key, kept in list(self.kept.items()):
            bound = self._pools.of(kept.pool).binder.leave_now(key, time.monotonic() * 1000.0)
            del self.kept[key]
            if bound is not None:
                self._go_on(kept, bound)

    def _look(self, pool: PoolScheduler, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + after_s
        former = self._timers.get(pool.pool)
        if former is not None:
            if former[1] <= at:
                return
            former[0].cancel()
        self._timers[pool.pool] = loop.call_at(at, self._wake, pool), at

    def _wake(self, pool: PoolScheduler) -> None:
        del self._timers[pool.pool]
        binder = pool.binder
        before = binder.version
        for bound in pool.bind(time.monotonic()):
            kept = self.kept.pop(bound.request.key, None)
            if kept is not None:
                self._go_on(kept, bound)
        now = time.monotonic()
        if binder.version != before or (len(binder) and now - self._told.get(pool.pool, 0.0) >= TELL_AGAIN_MS / 1000.0):
            self._told[pool.pool] = now
            self._announcer.waiting(pool.pool)
        at = pool.look_at(now)
        if at is not None:
            self._look(pool, at - now)

    def _go_on(self, kept: _Kept, bound: Bound) -> None:
        hop = kept.hop
        try:
            outcome = self._choose(kept.journey, hop, kept.queued_s, bound)
            if not isinstance(outcome, Postponed):
                hop.finish(outcome)
        except Exception as error:  # noqa: BLE001 - a plugin that fails for one request must not keep the others waiting
            _log.error("decision_failed", error, request_id=kept.journey.request_id)
            text = "The scheduler failed; the operator's log says why."
            hop.finish(hop.reject(500, text, code="scheduling_failed"))
