"""Books that lost word of something are put right by asking, and by noticing who is gone."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.reply import Rejection
from pointsman_contracts.scheduling import ReservationChange, Reservations
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler import reconciler as module
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.binding import Binding
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain.flow_control import Unserved
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.outlier_actions import RequestMover, VerdictPublisher
from pointsman_scheduler.reconciler import Reconciler
from pointsman_testing import eventually
from pointsman_testing.memory_nats import MemoryNats


def undecided(
    journey: Journey, hop: Hop[Journey], queued_s: float, bound: Bound | None, unserved: Unserved | None
) -> Rejection:
    pytest.fail("nothing is to be decided")


class Surroundings:
    """A scheduler with one worker on its books, its peer, and an edge."""

    def __init__(self) -> None:
        nats = MemoryNats()
        self.scheduler = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-1")))
        self.peer = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-2")))
        self.edge = Journeys(Bus(nats.link(), Process("frontend", "edge-1")))
        self.told: list[Reservations] = []
        self.peer.bus.listen(Reservations, self.told.append, ANY)
        self.pools = Pools("scheduler-1", 2**24)
        self.registry = CollectorRegistry()
        metrics = SchedulerMetrics(self.registry, lambda: self.pools)
        announcer = DecisionPublisher(self.scheduler.bus, self.scheduler.heartbeat, self.pools, metrics)
        binding = Binding(self.pools, undecided, announcer, lambda pool, stopped: None)
        gate = Gate(
            self.scheduler.heartbeat,
            self.pools,
            metrics,
            binding,
            lambda journey: journey,
            demand=DemandPublisher(self.scheduler.bus, metrics),
        )
        self.reconciler = Reconciler(
            self.scheduler.bus,
            self.scheduler.heartbeat,
            self.pools,
            gate,
            announcer,
            metrics,
            VerdictPublisher(self.scheduler.bus),
            RequestMover(self.scheduler.bus, metrics),
        )

    @property
    def pool(self) -> PoolScheduler:
        return self.pools.of("llama")

    async def begin(self) -> None:
        for service in (self.scheduler, self.peer, self.edge):
            service.open()
            await service.bus.wait_connected()
        loop = asyncio.get_running_loop()
        table = self.scheduler.heartbeat.table
        await eventually(lambda: table.is_alive("frontend", "edge-1", loop.time()))
        await eventually(lambda: table.is_alive("scheduler", "scheduler-2", loop.time()))
        registration = WorkerRegistration(
            worker="w1", pool="llama", url="http://w1:8000", boot_id="1", agent="a", version="1", registered_ms=0
        )
        self.pool.register(registration, time.monotonic())
        self.pool.hear(WorkerLoad(worker="w1", pool="llama", boot_id="1", sequence=1, at_ms=0), time.monotonic())

    def hold(self, request_id: str, edge: str = "edge-1", scheduler: str = "scheduler-1", age_s: float = 100.0) -> None:
        change = ReservationChange(
            op="reserve", request_id=request_id, worker="w1", boot_id="1", edge=edge, prompt_tokens=10
        )
        assert self.pool.books.apply(change, scheduler, time.monotonic() - age_s)

    def answer(self, *open_requests: str) -> None:
        """The edge says which requests are open."""

        def reply(_subject: str, reply_to: str, _headers: bytes, payload: bytes) -> None:
            asked = OpenRequestsQuery.decode(payload).request_ids
            answer = OpenRequests(request_ids=tuple(name for name in asked if name in open_requests))
            self.edge.bus.link.publish(reply_to, answer.encode())

        self.edge.bus.link.subscribe(subject(OpenRequestsQuery, "edge-1"), reply)

    @property
    def books(self) -> set[str]:
        return {hold.change.request_id for hold in self.pool.books}

    async def end(self) -> None:
        for service in (self.scheduler, self.peer, self.edge):
            await service.close()


@pytest.fixture
async def around(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Surroundings]:
    monkeypatch.setattr(module, "TURN_S", 0.05)
    monkeypatch.setattr(module, "EDGE_GONE_AFTER_S", 0.5)
    around = Surroundings()
    await around.begin()
    task = asyncio.get_running_loop().create_task(around.reconciler.run())
    yield around
    task.cancel()
    await asyncio.wait([task])
    await around.end()


async def test_reservations_that_the_edge_no_longer_knows_are_released_and_published(around: Surroundings) -> None:
    around.answer("open")
    around.hold("open")
    around.hold("lost")
    await eventually(lambda: around.books == {"open"})
    await eventually(lambda: around.told)
    assert [(change.op, change.request_id) for change in around.told[0].changes] == [("release", "lost")]


async def test_a_request_that_ended_while_the_edge_was_asked_counts_as_no_release(around: Surroundings) -> None:
    around.hold("ended")
    around.hold("lost")

    def ends_meanwhile(_subject: str, reply_to: str, _headers: bytes, _payload: bytes) -> None:
        around.pool.books.completed(("edge-1", "ended"), time.monotonic(), ok=True)
        around.edge.bus.link.publish(reply_to, OpenRequests(request_ids=()).encode())

    around.edge.bus.link.subscribe(subject(OpenRequestsQuery, "edge-1"), ends_meanwhile)
    await eventually(lambda: around.told)
    assert [change.request_id for change in around.told[0].changes] == ["lost"]
    released = around.registry.get_sample_value("pointsman_scheduler_reservations_reconciled_total", {"pool": "llama"})
    assert released == 1


async def test_a_request_that_one_edge_no_longer_knows_stays_on_the_books_for_another_one_that_has_its_id(
    around: Surroundings,
) -> None:
    around.answer()
    around.hold("same", age_s=10.0, edge="edge-2")
    around.hold("same")
    await eventually(lambda: around.told)
    assert [(change.edge, change.request_id) for change in around.told[0].changes] == [("edge-1", "same")]
    assert [hold.change.edge for hold in around.pool.books] == ["edge-2"]


async def test_young_reservations_are_not_asked_about(around: Surroundings) -> None:
    around.answer()
    around.hold("young", age_s=10.0)
    around.hold("lost")
    await eventually(lambda: around.books == {"young"})


async def test_a_living_scheduler_looks_after_its_own_and_a_dead_one_is_stood_in_for(around: Surroundings) -> None:
    around.answer()
    around.hold("of the living", scheduler="scheduler-2")
    around.hold("of the dead", scheduler="scheduler-9")
    await eventually(lambda: around.books == {"of the living"})


async def test_the_requests_of_an_edge_that_falls_silent_are_written_off(around: Surroundings) -> None:
    around.answer("open")
    around.hold("open", age_s=1.0)
    around.edge.heartbeat.stop()
    await eventually(lambda: around.books == set())


async def test_the_requests_of_an_edge_that_was_never_heard_are_written_off(around: Surroundings) -> None:
    around.hold("orphan", edge="edge-9")
    await eventually(lambda: around.books == set())
