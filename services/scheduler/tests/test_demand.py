"""A scheduler publishes that requests wait for a pool in which no engine serves, and has one engine woken where the
policy says so."""

from collections.abc import AsyncIterator
from typing import Final

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.demand import PoolWanted, WakeOrder
from pointsman_contracts.journey import Journey, RequestFacts, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import Decision, Rejection
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_hosting.configuration import Configuration
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.binding import Binding, Chooser
from pointsman_scheduler.configuration import compile_policies
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.handlers import Handlers
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.replica import Replica
from pointsman_testing import builders, eventually
from pointsman_testing.buses import RecordedHop
from pointsman_testing.memory_nats import MemoryNats

CONFIG: Final = """
pools: {llama: {models: [llama-8b]}}
scheduling:
  default:
    flow_control: {ttl: 20s, no_endpoint_ttl: %s, wake: {enabled: %s}}
"""
BURST: Final = 16 + 5
"""Requests that the detector lets go to an engine of which nothing is known yet."""


class Desk:
    """A scheduler without processes, and a reader of what it publishes."""

    def __init__(self, nats: MemoryNats, name: str = "scheduler-1", ttl: str = "20s", wake: str = "false") -> None:
        self.service = service = Journeys(Bus(nats.link(), Process("scheduler", name)))
        self.registry = CollectorRegistry()
        book = PolicyBook(registries())
        configuration = Configuration(lambda config, _: compile_policies(book, config), self.registry)
        self.pools = Pools(name, 2**24)
        metrics = SchedulerMetrics(self.registry, lambda: self.pools)
        announcer = DecisionPublisher(service.bus, service.heartbeat, self.pools, metrics)
        chooser = Chooser(configuration, self.pools, announcer, metrics)
        binding = Binding(self.pools, chooser.decide, announcer, lambda pool, stopped: None)
        demand = DemandPublisher(service.bus, metrics)
        self.gate = Gate(service.heartbeat, self.pools, metrics, binding, lambda journey: journey, demand=demand)
        metrics.watch_queues(self.gate.figures)
        replica = Replica(service.bus, service.heartbeat, self.pools, metrics)
        self.handlers = Handlers(self.pools, self.gate, replica, metrics, announcer.sessions)
        configuration.on_change(self.handlers.configured)
        assert configuration.offer_revision(1, CONFIG % (ttl, wake))

    def engine(self, worker: str, state: str = "serving") -> None:
        registration = WorkerRegistration(
            worker=worker,
            pool="llama",
            url=f"http://{worker}:8000",
            engine="vllm",
            boot_id="1",
            agent="a",
            version="1",
            registered_ms=0,
        )
        self.handlers.registered(registration)
        self.report(worker, state)

    def report(self, worker: str, state: str, **figures: int) -> None:
        load = WorkerLoad(worker=worker, pool="llama", boot_id="1", sequence=1, at_ms=0, state=state)
        self.handlers.load(replace(load, **figures))

    def ask(self, request_id: str) -> RecordedHop[Journey]:
        journey = builders.journey(
            "scheduler",
            request_id=request_id,
            edge="edge-1",
            revision=1,
            target=Target(model="llama-8b", pool="llama"),
            request=read_fields(RequestFacts, {"api": "chat.completions", "prompt_tokens": 1000}),
        )
        hop = RecordedHop(journey)
        hop.finish(self.gate.enter(journey, hop))
        return hop

    def leave(self, request_id: str) -> None:
        self.handlers.completed(
            ResponseCompleted(
                request_id=request_id, source="edge-1", sequence=1, at_ms=2000, pool="", status=499,
                outcome="client_gone",
            )
        )  # fmt: skip

    def gauge(self) -> float | None:
        return self.registry.get_sample_value("pointsman_scheduler_unserved_requests", {"pool": "llama"})


class Reader:
    def __init__(self, nats: MemoryNats) -> None:
        self.bus = Bus(nats.link(), Process("reader", "reader-1"))
        self.wanted: list[PoolWanted] = []
        self.orders: list[WakeOrder] = []
        self.decisions: list[RequestScheduled] = []
        self.bus.listen(PoolWanted, self.wanted.append, ANY)
        self.bus.listen(WakeOrder, self.orders.append, ANY, ANY)
        self.bus.listen(RequestScheduled, self.decisions.append, ANY)


@pytest.fixture
async def nats() -> MemoryNats:
    return MemoryNats()


@pytest.fixture
async def reader(nats: MemoryNats) -> AsyncIterator[Reader]:
    reader = Reader(nats)
    reader.bus.open()
    await reader.bus.wait_connected()
    yield reader
    await reader.bus.close()


async def started(desk: Desk) -> Desk:
    desk.service.open()
    await desk.service.bus.wait_connected()
    return desk


async def test_demand_for_an_empty_pool_is_published_until_an_engine_serves(nats: MemoryNats, reader: Reader) -> None:
    desk = await started(Desk(nats))
    assert desk.gauge() == 0  # an autoscaler's query finds it before anything waits
    hops = [desk.ask(f"r-{number}") for number in range(3)]
    assert desk.gauge() == 3
    await eventually(lambda: len(reader.wanted) == 1)
    desk.engine("w1")
    await eventually(lambda: len(reader.wanted) == 2)
    first, last = reader.wanted
    assert (first.there, first.asleep, first.waiting, first.ended) == ("none", 0, 1, "")
    assert (last.waiting, last.ended, last.since_ms, last.sequence) == (0, "served", first.since_ms, 2)
    await eventually(lambda: all(isinstance(hop.sent[-1], Decision) for hop in hops))
    assert desk.gauge() == 0
    await eventually(lambda: len(reader.decisions) == 3)
    assert all(event.no_endpoint == "none" for event in reader.decisions)
    assert all(0 < event.no_endpoint_ms <= event.queued_ms for event in reader.decisions)
    await desk.service.close()


async def test_a_pool_whose_engines_all_sleep_is_wanted_and_wakes_nothing_unless_that_is_configured(
    nats: MemoryNats, reader: Reader
) -> None:
    desk = await started(Desk(nats))
    for name in ("w1", "w2"):
        desk.engine(name, "asleep")
    hop = desk.ask("r-1")
    await eventually(lambda: len(reader.wanted) == 1)
    assert (reader.wanted[0].there, reader.wanted[0].asleep, reader.orders) == ("asleep", 2, [])
    desk.report("w2", "serving")
    await eventually(lambda: isinstance(hop.sent[-1], Decision))
    decision = hop.sent[-1]
    assert isinstance(decision, Decision)
    assert [endpoint.worker for endpoint in decision.endpoints] == ["w2"]
    await desk.service.close()


async def test_two_schedulers_wake_one_engine_and_their_demands_can_be_added_up(
    nats: MemoryNats, reader: Reader
) -> None:
    desks = [await started(Desk(nats, name, wake="true")) for name in ("scheduler-1", "scheduler-2")]
    woken = {name: list[WakeOrder]() for name in ("w1", "w2")}
    for name, orders in woken.items():
        reader.bus.listen(WakeOrder, orders.append, "llama", name)
    for desk in desks:
        for name in ("w2", "w1"):
            desk.engine(name, "asleep")
        desk.ask(f"r-{desk.service.bus.process.instance}")
    await eventually(lambda: len(woken["w1"]) >= 2)
    assert woken["w2"] == []
    assert {event.source for event in reader.wanted} == {"scheduler-1", "scheduler-2"}
    assert {event.ordered for event in reader.wanted} == {("w1",)}
    for desk in desks:
        await desk.service.close()


async def test_an_engine_that_is_woken_serves_when_it_says_so_and_not_before(nats: MemoryNats, reader: Reader) -> None:
    desk = await started(Desk(nats, wake="true"))
    for name in ("w1", "w2"):
        desk.engine(name, "asleep")
    hop = desk.ask("r-1")
    await eventually(lambda: len(reader.orders) >= 1)
    desk.report("w1", "not_ready")
    await eventually(lambda: len(reader.wanted) >= 1)
    assert [type(outcome).__name__ for outcome in hop.sent] == ["Parked"]
    desk.report("w1", "serving")
    await eventually(lambda: isinstance(hop.sent[-1], Decision))
    await desk.service.close()


async def test_requests_that_waited_go_to_a_cold_engine_in_order_and_within_its_bound(
    nats: MemoryNats, reader: Reader
) -> None:
    desk = await started(Desk(nats))
    desk.engine("w1", "asleep")
    hops = [desk.ask(f"r-{number}") for number in range(100)]
    desk.report("w1", "serving")

    def gone() -> list[int]:
        return [number for number, hop in enumerate(hops) if isinstance(hop.sent[-1], Decision)]

    await eventually(lambda: len(gone()) >= BURST)
    assert gone() == list(range(BURST))
    desk.leave("r-99")
    desk.report("w1", "serving", running=BURST)
    await eventually(lambda: len(gone()) > BURST)
    assert len(gone()) < 99
    await desk.service.close()


async def test_a_client_that_leaves_ends_its_demand(nats: MemoryNats, reader: Reader) -> None:
    desk = await started(Desk(nats))
    desk.ask("r-1")
    await eventually(lambda: len(reader.wanted) == 1)
    desk.leave("r-1")
    await eventually(lambda: len(reader.wanted) == 2)
    assert (reader.wanted[-1].ended, desk.gauge()) == ("cancelled", 0)
    await desk.service.close()


@pytest.mark.parametrize(
    ("asleep", "message"),
    [
        (0, "The pool has no endpoint and none came; retry later."),
        (1, "1 engine of the pool sleeps, none serves, and none was awake; retry later."),
        (2, "2 engines of the pool sleep, none serves, and none was awake; retry later."),
    ],
)
async def test_a_request_that_waited_in_vain_is_a_503_that_says_for_what(
    nats: MemoryNats, reader: Reader, asleep: int, message: str
) -> None:
    desk = await started(Desk(nats, ttl="100ms"))
    for number in range(asleep):
        desk.engine(f"w{number}", "asleep")
    hop = desk.ask("r-1")
    await eventually(lambda: isinstance(hop.sent[-1], Rejection))
    rejection = hop.sent[-1]
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.dropped_reason) == (503, "rejected-no-endpoints")
    assert (rejection.message, rejection.retry_after_s) == (message, 10.0)
    await eventually(lambda: [event.ended for event in reader.wanted] == ["", "timed_out"])
    await desk.service.close()


async def test_a_scheduler_that_ends_ends_its_demand(nats: MemoryNats, reader: Reader) -> None:
    desk = await started(Desk(nats))
    desk.ask("r-1")
    await desk.gate.close()
    await eventually(lambda: [event.ended for event in reader.wanted] == ["", "shutting_down"])
    await desk.service.close()
