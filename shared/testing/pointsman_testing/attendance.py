"""Records pauses of processes: on a busy machine, a process of a stack, its NATS server or the test may get no CPU for
seconds. This is another fault than the test's own."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.subjects import ANY
from pointsman_contracts.timing import BEAT_S
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.telling.process import Process

_STILL_S: Final = 2.5 * BEAT_S
"""A running process doesn't pause for longer than this between two beats."""
_AROUND_S: Final = 1.5
"""Seconds before and after a silence in which requests may feel it: held messages come late, and peers wait to
reconnect."""


class _Silence(NamedTuple):
    instance: str
    since: float
    until: float


class Attendance:
    """Receives every beat. Times are of `time.monotonic()`."""

    def __init__(self, bus: Bus) -> None:
        self._last: dict[str, float] = {}
        self._silences: list[_Silence] = []
        bus.listen(ServicePresence, self._heard, ANY, ANY)

    def stood_still(self, since: float, until: float, *stopped: int) -> list[str]:
        """Instances that were silent at some time of this span or shortly before or after it; without the processes
        with these ids, which the test itself stopped or killed."""
        begin, end, now = since - _AROUND_S, until + _AROUND_S, time.monotonic()
        open_ones = (_Silence(name, at, now) for name, at in self._last.items() if now - at > _STILL_S)
        found = {each.instance for each in (*self._silences, *open_ones) if each.since < end and each.until > begin}
        # A process id is part of the name that an instance has by itself.
        return sorted(name for name in found if not any(f"-{pid}-" in name for pid in stopped))

    def _heard(self, presence: ServicePresence) -> None:
        now, name = time.monotonic(), presence.instance
        last = self._last.get(name)
        if last is not None and now - last > _STILL_S:
            self._silences.append(_Silence(name, last, now))
        if presence.ready:
            self._last[name] = now
        else:
            # It begins or ends.
            self._last.pop(name, None)


@asynccontextmanager
async def attending(url: str) -> AsyncGenerator[Attendance]:
    """Listen on this server."""
    bus = Bus(Connection([url], name="attendance"), Process("observer", "attendance"))
    attendance = Attendance(bus)
    bus.open()
    await bus.wait_connected()
    try:
        yield attendance
    finally:
        await bus.close()
