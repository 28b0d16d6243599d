"""Requests that wait for their engine, from message to message."""

import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, RequestFacts, Target
from pointsman_contracts.reply import Decision, Parked
from pointsman_contracts.response import ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import RequestScheduled, Reservations
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
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_scheduler.replica import Replica
from pointsman_testing import builders, eventually
from pointsman_testing.buses import RecordedHop
from pointsman_testing.memory_nats import MemoryNats

TARGET = Target(model="llama-8b", pool="llama")


class Counter:
    """One scheduler of one engine whose pass times are learnt; `listener` hears what it publishes."""

    def __init__(self) -> None:
        nats = MemoryNats()
        self.service = service = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-1")))
        self.listener = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-2")))
        self.events: list[RequestScheduled] = []
        self.reservations: list[Reservations] = []
        self.listener.bus.listen(RequestScheduled, self.events.append, ANY)
        self.listener.bus.listen(Reservations, self.reservations.append, ANY)
        self.registry = CollectorRegistry()
        book = PolicyBook(registries())
        self.configuration = Configuration(lambda config, _: compile_policies(book, config), self.registry)
        self.pools = Pools("scheduler-1", 2**24)
        metrics = SchedulerMetrics(self.registry, lambda: self.pools)
        announcer = DecisionPublisher(service.bus, service.heartbeat, self.pools, metrics)
        chooser = Chooser(self.configuration, self.pools, announcer, metrics)
        self.binding = Binding(self.pools, chooser.decide, announcer, lambda pool, stopped: None)
        self.gate = Gate(
            service.heartbeat,
            self.pools,
            metrics,
            self.binding,
            lambda journey: journey,
            demand=DemandPublisher(service.bus, metrics),
        )
        replica = Replica(service.bus, service.heartbeat, self.pools, metrics)
        self.handlers = Handlers(self.pools, self.gate, replica, metrics, announcer.sessions)
        self.configuration.on_change(self.handlers.configured)
        assert self.configuration.offer_revision(1, "pools: {llama: {models: [llama-8b]}}")

    async def begin(self) -> None:
        for service in (self.service, self.listener):
            service.open()
            await service.bus.wait_connected()
        self.handlers.registered(
            WorkerRegistration(
                worker="w1", pool="llama", url="http://w1:8000", boot_id="1", agent="a", version="1", registered_ms=0
            )
        )
        self.handlers.load(WorkerLoad(worker="w1", pool="llama", boot_id="1", sequence=1, at_ms=0))
        self.ask("first", 10)
        self.over("first")
        policy = self.configuration.revisions[1].compiled["llama"]
        (producer,) = [each for each in policy.producers if isinstance(each, DelayPrediction)]
        dice = np.random.default_rng(1)
        for _ in range(200):
            tokens = float(dice.integers(100, 8000)) * 1e-3
            features = np.array([1.0, tokens, tokens**2, 0.0, 0.0, 0.0, 0.0])
            producer.estimator.best.model.learn_pass(features, 10_000.0 + 1000.0 * tokens, 1.0)

    async def end(self) -> None:
        for service in (self.service, self.listener):
            await service.close()

    def ask(self, request_id: str, tokens: int, attempt: int = 1) -> RecordedHop[Journey]:
        """A journey arrives; the first answer is the first of `sent`."""
        facts = RequestFacts(api="chat.completions", prompt_tokens=tokens, stream=True)
        journey = builders.journey("scheduler", request_id=request_id, attempt=attempt, target=TARGET, request=facts)
        hop = RecordedHop(journey)
        hop.finish(self.gate.enter(journey, hop))
        return hop

    def started(self, request_id: str) -> None:
        self.handlers.started(
            ResponseStarted(
                request_id=request_id, source="edge-1", sequence=1, at_ms=0, pool="llama", worker="w1", ttft_ms=5.0
            )
        )

    def over(self, request_id: str) -> None:
        self.handlers.completed(
            ResponseCompleted(
                request_id=request_id,
                source="edge-1",
                sequence=1,
                at_ms=time.time_ns() // 1_000_000,
                pool="llama",
                status=200,
                outcome="ok",
            )
        )

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, {"pool": "llama"} | labels) or 0.0


@pytest.fixture
async def counter() -> AsyncIterator[Counter]:
    counter = Counter()
    await counter.begin()
    yield counter
    await counter.end()


async def test_a_request_waits_for_its_engine_and_the_decision_says_how_long_and_why(counter: Counter) -> None:
    assert isinstance(counter.ask("long", 8000).sent[0], Decision)
    hop = counter.ask("next", 9000)
    assert isinstance(hop.sent[0], Parked)
    assert counter.counted("pointsman_scheduler_unbound_requests") == 1.0
    counter.started("long")
    await eventually(lambda: len(hop.sent) == 2)
    decision = hop.sent[1]
    assert isinstance(decision, Decision)
    assert decision.endpoints[0].worker == "w1"
    await eventually(lambda: any(event.request_id == "next" for event in counter.events))
    event = next(event for event in counter.events if event.request_id == "next")
    assert event.bound_because == "its turn came"
    assert counter.counted("pointsman_scheduler_bound_total", because="its turn came") == 1.0


async def test_peers_hear_what_waits_and_that_it_no_longer_does(counter: Counter) -> None:
    counter.listener.heartbeat.publish_state()
    await eventually(lambda: len(counter.service.heartbeat.table.list_instances("scheduler", counter_time())) > 1)
    counter.ask("long", 8000)
    counter.ask("next", 9000)
    await eventually(lambda: any(message.unbound for message in counter.reservations))
    (told,) = next(message.unbound for message in counter.reservations if message.unbound)
    assert (told.worker, told.uncached_tokens, told.prompt_tokens) == ("w1", 9000, 9000)
    counter.started("long")
    await eventually(lambda: counter.reservations[-1].unbound == ())


def counter_time() -> float:
    return asyncio.get_running_loop().time()


async def test_a_client_that_hangs_up_leaves_at_once(counter: Counter) -> None:
    counter.ask("long", 8000)
    hop = counter.ask("next", 9000)
    counter.over("next")
    assert counter.counted("pointsman_scheduler_unbound_requests") == 0.0
    counter.started("long")
    assert len(hop.sent) == 1


async def test_a_request_that_is_sent_again_is_answered_once_and_at_once(counter: Counter) -> None:
    counter.ask("long", 8000)
    former = counter.ask("next", 9000)
    assert isinstance(counter.ask("next", 9000, attempt=2).sent[0], Decision)
    assert len(former.sent) == 1
    assert counter.counted("pointsman_scheduler_unbound_requests") == 0.0


async def test_the_requests_of_an_edge_that_died_leave(counter: Counter) -> None:
    counter.ask("long", 8000)
    counter.ask("next", 9000)
    counter.gate.edge_gone("edge-1")
    assert counter.counted("pointsman_scheduler_unbound_requests") == 0.0


async def test_a_scheduler_that_ends_sends_on_those_that_wait(counter: Counter) -> None:
    counter.ask("long", 8000)
    hop = counter.ask("next", 9000)
    await counter.gate.close()
    assert isinstance(hop.sent[1], Decision)
