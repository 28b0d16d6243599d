"""Replicas of a stage that die or stop while requests pass: no request fails while one lives."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pointsman_contracts.reply import Decision, Rejection
from pointsman_journey.journey_client import JourneyClient
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.process import Process
from pointsman_testing import NatsServer, Processes, ServiceProcess, builders, eventually
from pointsman_testing.attendance import Attendance

SCRIPT = str(Path(__file__).with_name("sample_service.py"))
RATE = 100.0
"""Requests a second while something happens."""
HOP_BUDGET_S = 1.5
"""Longer than in production: on a busy machine a slow reply must not look like a lost one."""


class Sent(NamedTuple):
    """A request and what became of it; times of `time.monotonic()`."""

    began: float
    outcome: str
    ended: float


class Stack:
    """Two replicas of two stages, and an edge."""

    def __init__(self, server: NatsServer, processes: Processes, config: str) -> None:
        env = {"POINTSMAN_NATS_URL": server.url, "POINTSMAN_CONFIG": config}
        self.replicas: dict[str, list[ServiceProcess]] = {
            name: [processes.fork(SCRIPT, name, env=env) for _ in range(2)] for name in ("preprocessor", "scheduler")
        }
        self.service = Journeys(Bus(Connection([server.url], name="edge"), Process("frontend", "edge")))
        self.client = JourneyClient(self.service)
        self.attendance = Attendance(self.service.bus)

    async def ready(self) -> None:
        self.service.open()
        await asyncio.gather(*(replica.wait_ready() for replicas in self.replicas.values() for replica in replicas))
        loop = asyncio.get_running_loop()
        await eventually(
            lambda: all(
                len(self.service.heartbeat.table.list_instances(name, loop.time())) >= 2 for name in self.replicas
            )
        )

    async def send(self) -> Sent:
        """One request; what became of it."""
        began = time.monotonic()
        return Sent(began, await self._outcome(), time.monotonic())

    async def _outcome(self) -> str:
        try:
            answer = await self.client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=HOP_BUDGET_S)
        except BusError as error:
            return type(error).__name__
        if isinstance(answer, Rejection):
            return f"{answer.status} {answer.code}"
        assert isinstance(answer, Decision)
        return "decision"

    async def while_requests_pass(self, seconds: float, event: Callable[[], None]) -> list[Sent]:
        """Send at `RATE`, let something happen a quarter of the time in; what became of the requests."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        tasks: list[asyncio.Task[Sent]] = []
        for number in range(round(seconds * RATE)):
            if number == round(seconds * RATE / 4):
                event()
            tasks.append(loop.create_task(self.send()))
            await asyncio.sleep(max(0.0, started + (number + 1) / RATE - loop.time()))
        return await asyncio.gather(*tasks)


@pytest.fixture
async def stack(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> AsyncIterator[Stack]:
    config = tmp_path / "pointsman.yaml"
    await asyncio.to_thread(config.write_text, "pools: {llama-8b: {}}\n")
    made = Stack(own_nats_server, processes, str(config))
    try:
        await made.ready()
        yield made
    finally:
        await made.service.close()


@pytest.mark.parametrize("stage", ["preprocessor", "scheduler"])
@pytest.mark.parametrize("how", ["kill", "pause", "terminate"])
async def test_no_request_fails_when_one_of_two_replicas_ends_or_stops(stack: Stack, stage: str, how: str) -> None:
    replica = stack.replicas[stage][0]
    event = {
        "kill": replica.kill,
        "pause": replica.pause,
        "terminate": lambda: asyncio.create_task(replica.terminate()) and None,
    }[how]
    sent = await stack.while_requests_pass(3.0, event)
    failed = [each for each in sent if each.outcome != "decision"]
    # On a busy machine the other replica may stand still, too.
    assert [e for e in failed if not stack.attendance.stood_still(e.began, e.ended, replica.pid)] == []


@pytest.mark.parametrize("stage", ["preprocessor", "scheduler"])
async def test_without_a_living_replica_requests_wait_until_it_continues(stack: Stack, stage: str) -> None:
    first, second = stack.replicas[stage]
    second.kill()

    def pause_for_a_while() -> None:
        first.pause()
        asyncio.get_running_loop().call_later(2.0, first.resume)

    async with asyncio.timeout(60):
        sent = await stack.while_requests_pass(2.0, pause_for_a_while)
    assert {each.outcome for each in sent} == {"decision"}
    assert max(each.ended - each.began for each in sent) > 1.0
