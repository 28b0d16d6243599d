"""Buses for tests: one behaviour suite runs in memory and on a real server."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.services import STAGES
from pointsman_journey.hop import Hop, Onward, Outcome, Reply
from pointsman_journey.journeys import Journeys
from pointsman_journey.process_stages import ProcessStages
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.edge_clocks import EdgeClocks
from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.bus.link import Link
from pointsman_runtime.telling.process import Process
from pointsman_testing.eventually import PATIENCE_S, eventually

M = TypeVar("M", PreprocessRequest, Journey)

apart = pytest.mark.parametrize("buses", ["memory", "nats"], indirect=True)
"""For a test of features that only messages between processes have: bytes, headers, size limits, other replicas."""


class _Nowhere(Onward):
    """Sends nothing on."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.clocks = EdgeClocks()
        self.custom = process.service not in STAGES

    def forward(self, journey: Journey, reply_to: str, traceparent: str | None = None) -> None:
        raise NotImplementedError

    def reply(self, reply_to: str, message: Journey | Reply, traceparent: str | None = None) -> None:
        raise NotImplementedError


class RecordedHop(Hop[M]):
    """A hop for testing a handler without a bus; keeps the finished results."""

    __slots__ = ("sent",)

    def __init__(self, message: M, body: bytes = b"", *, service: str = "scheduler", instance: str = "1") -> None:
        super().__init__(
            _Nowhere(Process(service, f"{service}-{instance}")), message, memoryview(body), "_INBOX.test", None
        )
        self.sent: list[Outcome] = []

    def finish(self, outcome: Outcome) -> None:
        """Keep it."""
        if outcome is not None:
            self.sent.append(outcome)


class Buses:
    """Makes buses on one server and closes them after the test."""

    def __init__(self, new_link: Callable[[], Link], *, bundled: bool = False) -> None:
        self.new_link = new_link
        self._made: list[Journeys] = []
        self._hub = Hub(new_link(), "_INBOX.bundle") if bundled else None
        self._stages = None if self._hub is None else ProcessStages(self._hub)

    def make(self, service: str, instance: str = "1") -> Journeys:
        """A service on a bus that isn't open yet: register stages and listeners, then `meet`."""
        inside = self._hub is not None and all(made.process.service != service for made in self._made)
        around = self._hub if self._hub is not None and inside else self.new_link()
        bus = Bus(around, Process(service, f"{service}-{instance}"))
        made = Journeys(bus, self._stages if inside else None)
        # No message of a test dies because its machine is busy.
        made.allow(PATIENCE_S)
        self._made.append(made)
        return made

    async def meet(self) -> None:
        """Open every bus, let it serve, and wait until each knows that all of them live."""
        for made in self._made:
            if not made.heartbeat.beating:
                made.open()
        for made in self._made:
            await made.bus.wait_connected()
            made.serve()
        loop = asyncio.get_running_loop()

        def everybody_known() -> bool:
            return all(
                made.heartbeat.table.is_addressable(other.process.service, other.process.instance, loop.time())
                for made in self._made
                for other in self._made
            )

        await eventually(everybody_known)

    async def kill(self, made: Journeys) -> None:
        """Close one service's bus as by SIGKILL; `meet` then waits only for the others."""
        self._made.remove(made)
        await made.close()

    async def close(self) -> None:
        """Close every bus."""
        for made in self._made:
            await made.close()
        if self._hub is not None:
            await self._hub.close()
