"""Speaks for the engines without an agent that are this collector's share."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import aiohttp

from pointsman_engines.drain import Drain
from pointsman_engines.pace import ReadingPace
from pointsman_engines.speaker import EngineAccess, EngineSpeaker
from pointsman_engines.stored_entry import RegistrationEntries
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine, steps
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.logs import Log

LOOK_S: Final = 0.2
ENDS: Final = "its pod ends"
NOT_READY: Final = "its pod isn't ready"

_log = Log("engines")


class EngineSpeakers:
    """`named()` returns the engines to report for, `instances(pool)` the collectors that share those of a pool."""

    def __init__(
        self,
        bus: Bus,
        entries: RegistrationEntries,
        session: aiohttp.ClientSession,
        named: Callable[[], Mapping[Key, ScrapedEngine]],
        instances: Callable[[str], Collection[str]],
        ordered: Callable[[Key], Drain | None],
    ) -> None:
        """`ordered(key)`: the drain that operators ordered of an engine."""
        self._ordered = ordered
        self._bus = bus
        self._entries = entries
        self._session = session
        self._named = named
        self._instances = instances
        self._engines: dict[Key, ScrapedEngine] = {}
        self._speakers: dict[Key, EngineSpeaker] = {}
        self._changed = asyncio.Event()
        self._pace = ReadingPace()

    def active_speakers(self) -> list[EngineSpeaker]:
        """The speakers that are active now."""
        return list(self._speakers.values())

    def renew_registrations(self) -> None:
        """Register all of them again: earlier messages may have been lost."""
        for speaker in self._speakers.values():
            speaker.renew_registrations()

    def check_at_once(self) -> None:
        """Check at once: the engines changed, or one drains."""
        self._changed.set()

    async def run(self) -> None:
        """Follow the named engines and the other collectors until cancelled."""
        while True:
            self._changed.clear()
            await self._follow()
            self._pace.company.engines = max(1, len(self._speakers))
            for speaker in self._speakers.values():
                speaker.raise_task_error()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def stop(self) -> None:
        """Fall silent; the registrations are the next collector's, or expire."""
        await self._end(list(self._speakers), leave=False)

    async def _follow(self) -> None:
        named = self._named()
        todo = steps(self._engines, named, self._bus.process.instance, self._instances)
        await self._end(todo.hand_over, leave=False)
        await self._end(todo.remove, leave=True)
        for key in todo.start:
            self._begin(key, named[key])
        for key, speaker in self._speakers.items():
            speaker.set_drain(self._ordered(key) or _drain_of(named[key], speaker.drain))

    def _begin(self, key: Key, engine: ScrapedEngine) -> None:
        access = EngineAccess(
            engine.worker.url,
            metrics_url=engine.metrics_url,
            engine=engine.engine,
            health=engine.health,
            pace=self._pace,
            named=True,
            tls=engine.tls,
        )
        speaker = EngineSpeaker(self._bus, self._entries, self._session, engine.worker, access)
        self._engines[key] = engine
        self._speakers[key] = speaker
        speaker.start()
        _log.info("engine_taken_over", pool=key[0], worker=key[1], url=engine.worker.url)

    async def _end(self, keys: Collection[Key], *, leave: bool) -> None:
        """All at once: a thousand that take a moment each would outlast the time that a process has to stop."""
        ending = [self._speakers.pop(key).stop(leave=leave) for key in keys]
        for key in keys:
            del self._engines[key]
            _log.info("engine_given_up", pool=key[0], worker=key[1], removed=leave)
        await asyncio.gather(*ending)


def _drain_of(engine: ScrapedEngine, before: Drain | None) -> Drain | None:
    """The drain that follows from where the engine was found."""
    if not engine.draining:
        return None
    if engine.moves_at is None:
        return Drain(why=NOT_READY)
    if before is not None and before.why == ENDS:
        # The same moment by another clock: it would seem to change with each look.
        return before
    return Drain(asyncio.get_running_loop().time() + engine.moves_at - time.time(), ENDS)
