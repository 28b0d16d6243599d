"""Buses for tests: one behaviour suite runs in memory and on a real server."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.bus.link import Link
from pointsman_runtime.journey.stage import Hop, Outcome
from pointsman_runtime.telling.process import Process
from pointsman_testing.eventually import PATIENCE_S, eventually
from pointsman_testing.memory_nats import MemoryNats

M = TypeVar("M", PreprocessRequest, Journey)

apart = pytest.mark.parametrize("buses", ["memory", "nats"], indirect=True)
"""For a test of what only a message between processes has: bytes, headers, limits of size, other replicas."""


class RecordedHop(Hop[M]):
    """A hop for testing a handler without a bus; keeps what was finished."""

    __slots__ = ("sent",)

    def __init__(self, message: M, body: bytes = b"", *, service: str = "scheduler", instance: str = "1") -> None:
        bus = Bus(MemoryNats().link(), Process(service, f"{service}-{instance}"))
        super().__init__(bus, message, memoryview(body), "_INBOX.test", None)
        self.sent: list[Outcome] = []

    def finish(self, outcome: Outcome) -> None:
        """Keep it."""
        if outcome is not None:
            self.sent.append(outcome)


class Buses:
    """Makes buses on one server and closes them after the test."""

    def __init__(self, new_link: Callable[[], Link], *, bundled: bool = False) -> None:
        self.new_link = new_link
        self._made: list[Bus] = []
        self._hub = Hub(new_link(), "_INBOX.bundle") if bundled else None

    def make(self, service: str, instance: str = "1") -> Bus:
        """A bus that isn't open yet: register stages and listeners, then `meet`."""
        first = all(bus.process.service != service for bus in self._made)
        bus = Bus(self._hub if self._hub and first else self.new_link(), Process(service, f"{service}-{instance}"))
        # No message of a test dies because its machine is busy.
        bus.allow(PATIENCE_S)
        self._made.append(bus)
        return bus

    async def meet(self) -> None:
        """Open every bus, let it serve, and wait until each knows that all of them live."""
        for bus in self._made:
            if not bus.heartbeat.beating:
                bus.open()
        for bus in self._made:
            await bus.wait_connected()
            bus.serve()
        loop = asyncio.get_running_loop()

        def everybody_known() -> bool:
            return all(
                bus.heartbeat.table.addressable(other.process.service, other.process.instance, loop.time())
                for bus in self._made
                for other in self._made
            )

        await eventually(everybody_known)

    async def kill(self, bus: Bus) -> None:
        """Close one bus as by SIGKILL; `meet` waits for the others alone."""
        self._made.remove(bus)
        await bus.close()

    async def close(self) -> None:
        """Close every bus."""
        for bus in self._made:
            await bus.close()
        if self._hub is not None:
            await self._hub.close()
