"""Stages of one process hand each other requests by a call; a stage that is busy gets them in its turn."""

import asyncio

import pytest

from pointsman_contracts.journey import Journey, PreprocessRequest, Stage
from pointsman_contracts.reply import Decision
from pointsman_journey.hop import Hop
from pointsman_journey.journey_client import JourneyClient
from pointsman_testing import builders
from pointsman_testing.buses import Buses
from pointsman_testing.memory_nats import MemoryNats


class World:
    """A process of an edge, a preprocessor, a scheduler, and a guard that takes one request at a time."""

    def __init__(self) -> None:
        self.buses = Buses(MemoryNats().link, bundled=True)
        self.client = JourneyClient(self.buses.make("frontend"))
        self.buses.make("preprocessor").stage(PreprocessRequest, self._begin)
        self.buses.make("guard").stage(Journey, self._check, concurrency=1)
        self.scheduler = self.buses.make("scheduler")
        self.scheduler.stage(Journey, self._decide)
        self.route: tuple[str, ...] = ("guard", "scheduler")
        self.gate = asyncio.Event()
        self.guarded: list[str] = []
        self.trails: list[list[str]] = []

    def _begin(self, request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Journey:
        stages = tuple([Stage(service=name) for name in self.route])
        return builders.journey(*stages, request_id=request.request_id, trail=(hop.report(),))

    async def _check(self, journey: Journey, hop: Hop[Journey]) -> Journey:
        self.guarded.append(journey.request_id)
        if journey.request_id == "first":
            await self.gate.wait()
        return hop.advance()

    def _decide(self, journey: Journey, hop: Hop[Journey]) -> Decision:
        self.trails.append([report.stage for report in journey.trail])
        return builders.decision(journey.request_id)

    def sent(self, request_id: str) -> "asyncio.Task[object]":
        request = builders.preprocess_request(request_id=request_id)
        return asyncio.create_task(self.client.send_request(request, b"{}"))


async def test_a_busy_stage_takes_requests_in_the_order_in_which_they_came() -> None:
    world = World()
    try:
        await world.buses.meet()
        sent = [world.sent(name) for name in ("first", "second", "third")]
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.guarded == ["first"]
        world.gate.set()
        replies = await asyncio.gather(*sent)
        assert world.guarded == ["first", "second", "third"]
        assert [reply.request_id for reply in replies if isinstance(reply, Decision)] == world.guarded
    finally:
        await world.buses.close()


async def test_a_request_that_no_stage_keeps_waiting_is_decided_before_the_edge_waits() -> None:
    world = World()
    world.route = ("scheduler",)
    try:
        await world.buses.meet()
        replies = world.scheduler.bus.replies
        request = builders.preprocess_request(request_id="one")
        with pytest.raises(StopIteration) as ended:
            world.client.send_request(request, b"{}").send(None)
        assert isinstance(ended.value.value, Decision)
        assert (world.trails, len(replies), replies.late) == ([["preprocessor"]], 0, 0)
    finally:
        await world.buses.close()
