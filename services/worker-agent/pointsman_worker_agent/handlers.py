"""The agent's life cycle, from start to drain."""

import asyncio
from typing import Final

from pointsman_contracts.draining import DrainOrder
from pointsman_engines.drain import Drain
from pointsman_engines.speaker import EngineSpeaker
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.draining import Draining
from pointsman_worker_agent.name_claimer import NameClaimer

_LOOK_S = 0.1
_CHECK_S = 1.0

MOVING_S: Final = 5.0
"""Seconds at the end of the time for draining in which open requests move to other engines."""
CLOSE_S: Final = 1.0
"""Deadlines that differ by less are the same."""
ENDS: Final = "its agent ends"

_log = Log("agent")


class Handlers:
    """Around the one engine that this agent speaks for."""

    def __init__(self, speaker: EngineSpeaker, names: NameClaimer, drain_timeout_s: float) -> None:
        self._speaker = speaker
        self._names = names
        self._drain_timeout_s = drain_timeout_s
        self._ends = False
        self.drained = False
        """Whether the engine has ended what it had, or had the time for it, after SIGTERM."""

    async def start(self) -> None:
        """Begin to publish. An engine that does not answer is tried again; `/ready` names the reason."""
        self._speaker.start()

    async def supervise(self) -> None:
        """Raise when a part of the speaker ended."""
        while True:
            self._speaker.raise_task_error()
            await asyncio.sleep(_CHECK_S)

    def why_undrained(self) -> str | None:
        """Why the engine mustn't be ended yet; None when it has nothing left that could be saved."""
        if self.drained:
            return None
        if self._speaker.drain is None:
            return "the engine takes requests"
        # After SIGTERM it must have been idle for a moment.
        return "the engine has requests" if self._ends or not self._idle() else None

    def take_order(self, order: DrainOrder) -> None:
        """An operator orders the engine to drain, or to take requests again."""
        speaker, now = self._speaker, asyncio.get_running_loop().time()
        if self._ends or order.boot_id != speaker.status.boot_id:
            _log.info("drain_order_ignored", boot_id=order.boot_id, ends=self._ends)
            return
        if order.undo:
            speaker.set_drain(None)
            return
        drain = Drain(None if order.left_ms is None else now + order.left_ms / 1000, order.why)
        if not _is_same(speaker.drain, drain):
            _log.info("drain_ordered", left_ms=order.left_ms, why=order.why)
            speaker.set_drain(drain)

    async def drain(self) -> None:
        """Publish that the engine drains, wait until it is idle, remove its registration."""
        speaker, loop = self._speaker, asyncio.get_running_loop()
        self._ends = True
        # The last part is for what moves to other engines.
        until = loop.time() + self._drain_timeout_s - min(MOVING_S, self._drain_timeout_s / 5)
        ordered = speaker.drain
        if ordered is not None and ordered.until is not None:
            until = min(until, ordered.until)
        drain = Drain(until, ENDS)
        speaker.set_drain(drain)
        self._names.leaving = True
        self._names.publish_claim()
        draining = Draining(loop.time(), self._drain_timeout_s)
        while not draining.is_finished(loop.time(), idle=self._idle()):
            if draining.is_overdue(loop.time()):
                reading = speaker.status.reading
                _log.warning(
                    "drain_incomplete",
                    waited_s=self._drain_timeout_s,
                    running=reading.running if reading else 0,
                    waiting=reading.waiting if reading else 0,
                )
                break
            await asyncio.sleep(_LOOK_S)
            # An engine that restarts meanwhile drains, too.
            speaker.set_drain(drain)
        self.drained = True
        await speaker.stop(leave=True)

    def _idle(self) -> bool:
        """An engine that doesn't answer has nothing that could be waited for."""
        status = self._speaker.status
        return not status.reachable or status.reading is None or not status.reading.busy


def _is_same(known: Drain | None, ordered: Drain) -> bool:
    if known is None or known.why != ordered.why or known.until is None or ordered.until is None:
        return known == ordered
    return abs(known.until - ordered.until) < CLOSE_S
