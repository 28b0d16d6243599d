"""Follows all pools while a page shows them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from pointsman_console.adapters.window import Window
from pointsman_console.domain.fleet import FleetTable
from pointsman_contracts.fleet import FleetQuery, FleetView
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.subjects import ANY, subject
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log

TICK_S: Final = 1.0
"""Between two versions of the page."""
ASK_EVERY: Final = 2
"""Ticks between two questions to schedulers."""
ANSWER_S: Final = 2.0
SCHEDULER: Final = "scheduler"

_log = Log("fleet")


class FleetFeed:
    """One table for all viewers."""

    def __init__(self, window: Window) -> None:
        self._window: Final = window
        self._viewers = 0
        self._following: asyncio.Task[None] | None = None
        self._said: set[str] = set()
        self.table = FleetTable()
        self.ticked = asyncio.Event()
        """Replaced at every tick, after it is set."""

    @asynccontextmanager
    async def watch_pools(self) -> AsyncGenerator["FleetFeed"]:
        """Follow the pools for the length of a `with`."""
        self._viewers += 1
        if self._following is None:
            self.table = FleetTable()
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="fleet")
        try:
            yield self
        finally:
            self._viewers -= 1
            if not self._viewers:
                following, self._following = self._following, None
                await end_all([following])

    async def _follow(self) -> None:
        async with self._window.hold_bus() as bus:
            snapshots: dict[str, bytes] = {}
            schedulers: dict[str, ServicePresence] = {}

            def snapshot(to: str, reply: str, headers: bytes, payload: bytes) -> None:
                del reply, headers
                snapshots[to] = payload

            def beat(to: str, reply: str, headers: bytes, payload: bytes) -> None:
                del to, reply, headers
                try:
                    presence = ServicePresence.decode(payload)
                except MalformedMessage as error:
                    self._say("beat_unreadable", error)
                    return
                schedulers[presence.instance] = presence

            sids = [
                bus.link.subscribe(subject(PoolSnapshot, ANY), snapshot),
                bus.link.subscribe(subject(ServicePresence, SCHEDULER, ANY), beat),
            ]
            try:
                turn = 0
                while True:
                    for payload in snapshots.values():
                        try:
                            self.table.take_snapshot(PoolSnapshot.decode(payload))
                        except MalformedMessage as error:
                            self._say("snapshot_unreadable", error)
                    snapshots.clear()
                    if turn % ASK_EVERY == 1:
                        await self._ask_schedulers(bus, schedulers)
                        schedulers.clear()
                    self.table.advance_version()
                    ticked, self.ticked = self.ticked, asyncio.Event()
                    ticked.set()
                    # The first figures come within a tick of their own, so that a page isn't empty for long.
                    await asyncio.sleep(TICK_S if turn else TICK_S / 2)
                    turn += 1
            finally:
                for sid in sids:
                    bus.link.unsubscribe(sid)

    async def _ask_schedulers(self, bus: Bus, schedulers: dict[str, ServicePresence]) -> None:
        """One scheduler of each pool; the same one while it lives."""
        asked: list[tuple[str, str]] = []
        for pool in self.table.list_pools():
            ready = sorted(
                name for name, beat in schedulers.items() if beat.ready and (not beat.routes or pool in beat.routes)
            )
            if ready:
                asked.append((ready[0], pool))
        for view in await asyncio.gather(*(self._view(bus, instance, pool) for instance, pool in asked)):
            if view is not None:
                self.table.take_view(view)

    async def _view(self, bus: Bus, instance: str, pool: str) -> FleetView | None:
        try:
            return FleetView.decode(await bus.ask(FleetQuery(pool=pool), instance, timeout=ANSWER_S))
        except (BusError, MalformedMessage) as error:
            self._say("scheduler_not_asked", error)
            return None

    def _say(self, event: str, error: Exception) -> None:
        """Once for each kind of failure."""
        words = f"{event} {type(error).__name__}"
        if words not in self._said:
            self._said.add(words)
            _log.warning(event, reason=type(error).__name__)
