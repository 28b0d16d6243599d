"""The mechanism that requests wait by: a timer for each pool, and the answer of a request that goes on."""

import asyncio
from collections.abc import Callable
from typing import Final

from pointsman_contracts.journey import Journey
from pointsman_contracts.reply import Decision, Parked, Rejection
from pointsman_journey.hop import Hop
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.outcome import Postponed

_log = Log("waiting_room")


class PoolTimers:
    """Calls `wake` with a pool's name at the earliest time that was asked for, once."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake: Final = wake
        self._timers: dict[str, tuple[asyncio.TimerHandle, float]] = {}
        """The timer of each pool, with the loop time at which it fires."""

    def wake_after(self, pool: str, after_s: float) -> None:
        """Wake the pool in so many seconds; 0 means the next turn of the event loop. An earlier timer stays."""
        loop = asyncio.get_running_loop()
        at = loop.time() + after_s
        former = self._timers.get(pool)
        if former is not None:
            if former[1] <= at:
                return
            former[0].cancel()
        self._timers[pool] = loop.call_at(at, self._fire, pool), at

    def cancel(self, pool: str) -> None:
        """Wake the pool no more, until it is asked for again."""
        timer = self._timers.pop(pool, None)
        if timer is not None:
            timer[0].cancel()

    def cancel_all(self) -> None:
        """Wake no pool any more."""
        for pool in [*self._timers]:
            self.cancel(pool)

    def _fire(self, pool: str) -> None:
        del self._timers[pool]
        self._wake(pool)


def finish_waiting(
    journey: Journey, hop: Hop[Journey], decide: Callable[[], Decision | Rejection | Parked | Postponed]
) -> None:
    """Answer a request that has waited. Parked or Postponed: it waits on. A plugin that fails for one request gets that
    request a 500, and keeps no other waiting."""
    try:
        outcome = decide()
        if not isinstance(outcome, Parked | Postponed):
            hop.finish(outcome)
    except Exception as error:  # noqa: BLE001 - see above
        _log.error("decision_failed", error, request_id=journey.request_id)
        text = "The scheduler failed; the operator's log says why."
        hop.finish(hop.reject(500, text, code="scheduling_failed"))
