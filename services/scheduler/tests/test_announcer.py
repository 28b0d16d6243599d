"""Schedulers publish once a turn, in sequence, and never more than the bus takes."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import JOURNEY_LIMIT, Target
from pointsman_contracts.scheduling import RequestScheduled, Reservations
from pointsman_contracts.subjects import ANY
from pointsman_journey.journeys import Journeys
from pointsman_plugins.scheduling.run import Removed
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_testing import builders, eventually
from pointsman_testing.buses import RecordedHop
from pointsman_testing.memory_nats import MemoryNats
from pointsman_testing.scheduler_bench import Bench

TARGET = Target(model="llama-8b", pool="llama")


class Room:
    """A scheduler that publishes, and a subscriber."""

    def __init__(self, nats: MemoryNats) -> None:
        self.link = nats.link()
        self.service = Journeys(Bus(self.link, Process("scheduler", "scheduler-1")))
        self.listener = Journeys(Bus(nats.link(), Process("recorder", "recorder-1")))
        self.events: list[RequestScheduled] = []
        self.reservations: list[Reservations] = []
        self.listener.bus.listen(RequestScheduled, self.events.append, ANY)
        self.listener.bus.listen(Reservations, self.reservations.append, ANY)
        self.registry = CollectorRegistry()
        pools = Pools("scheduler-1", 2**20)
        self.announcer = DecisionPublisher(
            self.service.bus,
            self.service.heartbeat,
            pools,
            SchedulerMetrics(self.registry, lambda: pools),
        )

    async def begin(self) -> None:
        for service in (self.service, self.listener):
            service.open()
            await service.bus.wait_connected()

    def schedule(self, bench: Bench, **fields: object) -> None:
        journey = builders.journey("scheduler", target=TARGET, **fields)
        outcome = bench.decide(bench.request(request_id=journey.request_id))
        self.announcer.record_decision(journey, TARGET, bench.policy, 1, outcome, 5e-5, 0.0, RecordedHop(journey), None)

    async def end(self) -> None:
        for service in (self.service, self.listener):
            await service.close()


@pytest.fixture
async def nats() -> MemoryNats:
    return MemoryNats()


@pytest.fixture
async def room(nats: MemoryNats) -> AsyncIterator[Room]:
    room = Room(nats)
    await room.begin()
    yield room
    await room.end()


async def test_decisions_are_published_in_sequence_without_gaps(room: Room) -> None:
    bench = Bench()
    bench.join("w1", "w2")
    for _ in range(20):
        room.schedule(bench)
    await eventually(lambda: len(room.events) == 20)
    assert [event.sequence for event in room.events] == list(range(1, 21))
    assert {event.policy_hash for event in room.events} == {bench.policy.hash}
    assert room.reservations == []


async def test_peers_hear_of_all_reservations_of_a_turn_in_one_message(room: Room, nats: MemoryNats) -> None:
    peer = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-2")))
    peer.open()
    await peer.bus.wait_connected()
    await eventually(lambda: len(room.service.heartbeat.table.list_instances("scheduler", 0.0)) == 2)
    bench = Bench()
    bench.join("w1", "w2")
    for _ in range(5):
        room.schedule(bench)
    await eventually(lambda: room.reservations)
    room.schedule(bench)
    await eventually(lambda: len(room.reservations) == 2)
    assert [(len(message.changes), message.sequence) for message in room.reservations] == [(5, 1), (1, 2)]
    assert {message.scheduler for message in room.reservations} == {"scheduler-1"}
    await peer.close()


async def test_ends_of_streams_leave_sooner_while_there_are_other_schedulers(room: Room, nats: MemoryNats) -> None:
    """They learn from them how long an engine's passes take."""
    bench = Bench()
    bench.join("w1", "w2")
    room.schedule(bench)
    await eventually(lambda: len(room.events) == 1)
    assert not room.link.hasty
    peer = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-2")))
    peer.open()
    await peer.bus.wait_connected()
    await eventually(lambda: len(room.service.heartbeat.table.list_instances("scheduler", 0.0)) == 2)
    room.schedule(bench)
    await eventually(lambda: len(room.events) == 2)
    assert room.link.hasty
    await peer.close()


@pytest.mark.parametrize("engine", ["vllm", "opaque"])
async def test_an_event_that_is_too_big_keeps_the_best_candidates_and_counts_the_others(
    room: Room, engine: str
) -> None:
    settings: dict[str, object] = {"handler": "shadow", "profiles": {"default": {}, "a": {}, "b": {}, "c": {}}}
    bench = Bench(settings)
    names = [f"a-worker-whose-name-takes-a-lot-of-room-in-an-event-{number:04d}" for number in range(600)]
    bench.join(*names, engine=engine)
    room.schedule(bench)
    await eventually(lambda: room.events)
    event = room.events[0]
    assert len(event.encode()) <= JOURNEY_LIMIT
    for run in event.runs:
        assert run.candidates.omitted == 600 - len(run.candidates.workers) > 0
        assert set(run.chosen) <= set(run.candidates.workers)
        assert run.candidates.opaque == (run.candidates.workers if engine == "opaque" else ())


async def test_an_event_that_is_too_big_with_one_candidate_is_counted_and_logged_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.join("w1", "w2")
    for _ in range(2):
        room.schedule(bench, reasons=("no room for anything else " * 3000,))
    room.schedule(bench)
    await eventually(lambda: room.events)
    assert room.events[0].sequence == 3
    unpublished = {"type": "RequestScheduled"}
    assert room.registry.get_sample_value("pointsman_scheduler_unpublished_total", unpublished) == 2
    assert caplog.text.count("decision_too_large") == 1


async def test_a_filter_that_can_not_explain_itself_silences_no_other_decision(room: Room) -> None:
    def speechless(_: object) -> str:
        raise KeyError("words")

    bench = Bench()
    bench.join("w1", "w2")
    journey = builders.journey("scheduler", target=TARGET)
    outcome = bench.decide()
    run = outcome.runs[0]
    run.removed.append(Removed("broken", run.candidates.indices(), speechless))
    room.announcer.record_decision(journey, TARGET, bench.policy, 1, outcome, 5e-5, 0.0, RecordedHop(journey), None)
    room.schedule(bench)
    await eventually(lambda: room.events)
    assert [event.request_id for event in room.events] != [journey.request_id]


async def test_decisions_made_while_the_bus_is_away_are_published_once_it_is_back(room: Room, nats: MemoryNats) -> None:
    bench = Bench()
    bench.join("w1")
    room.schedule(bench)
    await eventually(lambda: room.events)
    nats.stop()
    room.schedule(bench)
    room.announcer.publish_recorded()
    assert len(room.events) == 1
    nats.start()
    await eventually(lambda: room.service.bus.connected and room.listener.bus.connected)
    room.schedule(bench)
    await eventually(lambda: len(room.events) >= 3)
    assert sorted(event.sequence for event in room.events) == [1, 2, 3]
    unpublished = {"type": "RequestScheduled"}
    assert not room.registry.get_sample_value("pointsman_scheduler_unpublished_total", unpublished)
