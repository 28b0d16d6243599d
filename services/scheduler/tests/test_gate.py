"""Requests wait while their pool is saturated; each gets exactly one answer, or none when its client has gone."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import numpy as np
import pytest
import uvloop
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, RequestFacts, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import Decision, Parked, Rejection
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Outcome
from pointsman_journey.journeys import Journeys
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler import gate
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.binding import Binding, Chooser
from pointsman_scheduler.configuration import compile_policies
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain import outcome
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.handlers import Handlers
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.replica import Replica
from pointsman_testing import builders, eventually
from pointsman_testing.buses import RecordedHop
from pointsman_testing.memory_nats import MemoryNats

CONFIG = """
pools: {llama: {models: [llama-8b]}}
scheduling:
  default:
    flow_control:
      ttl: %s
      detector: {use: concurrency, max_requests: 1}
"""


class Desk:
    """A scheduler without processes: every engine takes one request at a time."""

    def __init__(self, nats: MemoryNats, ttl: str) -> None:
        self.service = service = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-1")))
        registry = CollectorRegistry()
        book = PolicyBook(registries())
        self.configuration = Configuration(lambda config, _: compile_policies(book, config), registry)
        self.pools = Pools("scheduler-1", 2**24)
        self.metrics = SchedulerMetrics(registry, lambda: self.pools)
        announcer = DecisionPublisher(service.bus, service.heartbeat, self.pools, self.metrics)
        chooser = Chooser(self.configuration, self.pools, announcer, self.metrics)
        binding = Binding(self.pools, chooser.decide, announcer, lambda pool, stopped: None)
        self.gate = Gate(
            service.heartbeat,
            self.pools,
            self.metrics,
            binding,
            lambda journey: journey,
            demand=DemandPublisher(service.bus, self.metrics),
        )
        replica = Replica(service.bus, service.heartbeat, self.pools, self.metrics)
        self.handlers = Handlers(self.pools, self.gate, replica, self.metrics, announcer.sessions)
        self.configuration.on_change(self.handlers.configured)
        assert self.configuration.offer_revision(1, CONFIG % ttl)

    def engine(self, worker: str) -> None:
        registration = WorkerRegistration(
            worker=worker,
            pool="llama",
            url=f"http://{worker}:8000",
            boot_id="1",
            agent="a",
            version="1",
            registered_ms=0,
        )
        self.handlers.registered(registration)
        self.handlers.load(WorkerLoad(worker=worker, pool="llama", boot_id="1", sequence=1, at_ms=0))

    def ask(
        self,
        request_id: str,
        attempt: int = 1,
        edge: str = "edge-1",
        received_ms: int = 1000,
        revision: int = 1,
        pool: str = "llama",
        **facts: object,
    ) -> RecordedHop[Journey]:
        """A journey arrives; the first answer is the first of `sent`."""
        journey = builders.journey(
            "scheduler",
            request_id=request_id,
            edge=edge,
            attempt=attempt,
            received_ms=received_ms,
            revision=revision,
            target=Target(model="llama-8b", pool=pool),
            request=read_fields(RequestFacts, {"api": "chat.completions", "prompt_tokens": 10} | facts),
        )
        hop = RecordedHop(journey)
        hop.finish(self.gate.enter(journey, hop))
        return hop

    def end(
        self, request_id: str, outcome: str = "ok", pool: str = "llama", edge: str = "edge-1", at_ms: int = 2000
    ) -> None:
        self.handlers.completed(
            ResponseCompleted(
                request_id=request_id, source=edge, sequence=1, at_ms=at_ms, pool=pool, status=200, outcome=outcome
            )
        )


@pytest.fixture
async def nats() -> MemoryNats:
    return MemoryNats()


@pytest.fixture
async def desk(nats: MemoryNats) -> AsyncIterator[Desk]:
    desk = Desk(nats, "20s")
    desk.service.open()
    await desk.service.bus.wait_connected()
    desk.engine("w1")
    yield desk
    await desk.service.close()


def kinds(hop: RecordedHop[Journey]) -> list[str]:
    return [type(outcome).__name__ for outcome in hop.sent]


async def test_a_request_for_a_full_pool_waits_and_goes_when_another_one_ends(desk: Desk) -> None:
    first = desk.ask("first")
    second = desk.ask("second")
    assert (kinds(first), kinds(second)) == (["Decision"], ["Parked"])
    desk.end("first")
    await eventually(lambda: len(second.sent) == 2)
    decision = second.sent[1]
    assert isinstance(decision, Decision)
    assert decision.queued_ms > 0


@pytest.mark.requirement("S2-47")
async def test_a_request_that_waits_takes_what_is_best_when_it_leaves(desk: Desk) -> None:
    desk.ask("first")
    second = desk.ask("second")
    desk.engine("w2")
    await eventually(lambda: len(second.sent) == 2)
    decision = second.sent[1]
    assert isinstance(decision, Decision)
    assert decision.endpoints[0].worker == "w2"


async def test_a_request_whose_client_left_before_its_journey_came_takes_no_place(desk: Desk) -> None:
    desk.end("left", "client_gone", pool="", at_ms=1500)
    late = desk.ask("left", received_ms=1000)
    (rejection,) = late.sent
    assert isinstance(rejection, Rejection)
    assert (rejection.code, rejection.dropped_reason) == ("client_disconnected", "rejected-context-cancelled")
    assert kinds(desk.ask("next")) == ["Decision"]


async def test_a_request_id_that_a_client_uses_again_is_another_request(desk: Desk) -> None:
    assert kinds(desk.ask("again", received_ms=1000)) == ["Decision"]
    desk.end("again", at_ms=1500)
    assert kinds(desk.ask("again", received_ms=1500)) == ["Decision"]


class Unsendable(RecordedHop[Journey]):
    """Of a decision into which a plugin put what JSON has no word for."""

    def finish(self, outcome: Outcome) -> None:
        if isinstance(outcome, Decision):
            raise TypeError("not JSON")
        super().finish(outcome)


async def test_a_request_that_fails_when_it_leaves_keeps_no_other_waiting(desk: Desk) -> None:
    first = desk.ask("first")
    failing = Unsendable(replace(first.message, request_id="failing"))
    failing.finish(desk.gate.enter(failing.message, failing))
    patient = desk.ask("patient")
    desk.engine("w2")
    desk.engine("w3")
    await eventually(lambda: len(patient.sent) == 2)
    assert (kinds(failing), kinds(patient)) == (["Parked", "Rejection"], ["Parked", "Decision"])


async def test_higher_priorities_go_first(desk: Desk) -> None:
    desk.ask("first")
    low, high = desk.ask("low"), desk.ask("high", priority=5)
    desk.end("first")
    await eventually(lambda: len(high.sent) == 2)
    assert kinds(low) == ["Parked"]
    desk.end("high")
    await eventually(lambda: len(low.sent) == 2)


@pytest.mark.parametrize("pool", ["-", "llama"])
async def test_a_client_that_hangs_up_leaves_the_queue_at_once(desk: Desk, pool: str) -> None:
    desk.ask("first")
    gone, patient = desk.ask("gone"), desk.ask("patient")
    desk.end("gone", "client_gone", pool)
    assert [figures.requests for _, figures in desk.gate.figures()] == [1]
    desk.end("first")
    await eventually(lambda: len(patient.sent) == 2)
    assert kinds(gone) == ["Parked"]


async def test_a_request_that_is_sent_again_keeps_its_place_and_is_answered_on_its_new_way(desk: Desk) -> None:
    desk.ask("first")
    waiting, later = desk.ask("waiting"), desk.ask("later")
    again = desk.ask("waiting", attempt=2)
    assert kinds(again) == ["Parked"]
    desk.end("first")
    await eventually(lambda: len(again.sent) == 2)
    decision = again.sent[1]
    assert isinstance(decision, Decision)
    assert decision.attempt == 2
    assert (kinds(waiting), kinds(later)) == (["Parked"], ["Parked"])


async def test_a_request_that_was_decided_is_decided_again_although_the_pool_is_full(desk: Desk) -> None:
    first = desk.ask("first")
    again = desk.ask("first", attempt=2)
    assert kinds(again) == ["Decision"]
    decisions = [hop.sent[0] for hop in (first, again)]
    workers = [decision.endpoints[0].worker for decision in decisions if isinstance(decision, Decision)]
    assert workers == ["w1", "w1"]
    assert len(desk.pools.of("llama").books) == 1


async def test_a_request_of_another_edge_waits_like_any_other_although_it_has_the_id_of_one_that_was_decided(
    desk: Desk,
) -> None:
    assert kinds(desk.ask("same")) == ["Decision"]
    assert kinds(desk.ask("same", edge="edge-2")) == ["Parked"]


async def test_two_edges_requests_with_one_id_wait_side_by_side_and_each_is_answered(desk: Desk) -> None:
    desk.ask("first")
    one, two = desk.ask("same"), desk.ask("same", edge="edge-2")
    assert [figures.requests for _, figures in desk.gate.figures()] == [2]
    desk.end("first")
    await eventually(lambda: len(one.sent) == 2)
    desk.end("same")
    await eventually(lambda: len(two.sent) == 2)
    assert kinds(one) == kinds(two) == ["Parked", "Decision"]


async def test_a_client_that_hangs_up_at_one_edge_takes_no_request_of_another_edge_along(desk: Desk) -> None:
    desk.ask("first")
    gone, patient = desk.ask("same"), desk.ask("same", edge="edge-2")
    desk.end("same", "client_gone", pool="-")
    desk.end("first")
    await eventually(lambda: len(patient.sent) == 2)
    assert (kinds(gone), kinds(patient)) == (["Parked"], ["Parked", "Decision"])
    desk.end("same", "client_gone")
    assert len(desk.pools.of("llama").books) == 1


async def test_the_death_of_one_edge_leaves_another_ones_requests_in_the_queue(desk: Desk) -> None:
    desk.ask("first", edge="edge-3")
    patient = desk.ask("same")
    desk.ask("same", edge="edge-2")
    desk.gate.edge_gone("edge-2")
    desk.end("first", edge="edge-3")
    await eventually(lambda: len(patient.sent) == 2)
    assert kinds(patient) == ["Parked", "Decision"]


async def test_a_request_that_is_sent_again_to_another_pool_waits_only_there(desk: Desk) -> None:
    two_pools = (CONFIG % "20s").replace("pools: {", "pools: {other: {models: [other]}, ")
    assert desk.configuration.offer_revision(2, two_pools)
    desk.ask("first", revision=2)
    former = desk.ask("again", revision=2)
    later = desk.ask("again", revision=2, attempt=2, pool="other")
    behind = desk.ask("behind", revision=2)
    desk.end("first")
    await eventually(lambda: len(behind.sent) == 2)
    assert (kinds(former), kinds(later), kinds(behind)) == (["Parked"], ["Parked"], ["Parked", "Decision"])
    desk.end("again", "client_gone", pool="")
    assert {pool: figures.requests for pool, figures in desk.gate.figures()} == {"llama": 0, "other": 0}


async def test_a_request_that_waits_too_long_is_rejected_with_retry_after(nats: MemoryNats) -> None:
    desk = Desk(nats, "100ms")
    desk.service.open()
    await desk.service.bus.wait_connected()
    desk.engine("w1")
    desk.ask("first")
    waiting = desk.ask("waiting")
    await eventually(lambda: len(waiting.sent) == 2)
    rejection = waiting.sent[1]
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.dropped_reason) == (429, "rejected-ttl-expired")
    assert rejection.retry_after_s is not None
    await desk.service.close()


async def test_a_pool_without_endpoints_is_waited_for_and_the_first_to_come_serves(nats: MemoryNats) -> None:
    desk = Desk(nats, "20s")
    desk.service.open()
    await desk.service.bus.wait_connected()
    waiting = desk.ask("waiting")
    assert kinds(waiting) == ["Parked"]
    desk.engine("w1")
    await eventually(lambda: len(waiting.sent) == 2)
    assert isinstance(waiting.sent[1], Decision)
    await desk.service.close()


async def test_a_pool_whose_endpoints_are_all_known_to_be_bad_is_a_503_at_once_that_says_why(nats: MemoryNats) -> None:
    desk = Desk(nats, "20s")
    desk.service.open()
    await desk.service.bus.wait_connected()
    bad = WorkerLoad(
        worker="w1", pool="llama", boot_id="", sequence=1, at_ms=0, state="unreachable", reason="connection refused"
    )
    desk.handlers.load(bad)
    (rejection,) = desk.ask("refused").sent
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.dropped_reason) == (503, "rejected-no-endpoints")
    assert rejection.message == "No endpoint of pool 'llama' answers (connection refused)."
    desk.engine("w1")
    assert kinds(desk.ask("served")) == ["Decision"]
    await desk.service.close()


async def test_a_pool_whose_endpoints_do_not_come_is_a_503(nats: MemoryNats) -> None:
    desk = Desk(nats, "100ms")
    desk.service.open()
    await desk.service.bus.wait_connected()
    waiting = desk.ask("waiting")
    await eventually(lambda: len(waiting.sent) == 2)
    rejection = waiting.sent[1]
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.dropped_reason) == (503, "rejected-no-endpoints")
    await desk.service.close()


async def test_waiting_requests_are_rejected_when_the_last_scheduler_ends(desk: Desk) -> None:
    desk.ask("first")
    waiting = desk.ask("waiting")
    await desk.gate.close()
    rejection = waiting.sent[1]
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.dropped_reason) == (503, "rejected-shutting-down")


async def test_waiting_requests_go_to_another_scheduler_when_theirs_ends(nats: MemoryNats, desk: Desk) -> None:
    peer = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-2")))
    peer.open()
    await peer.bus.wait_connected()
    peer.serve()
    loop = asyncio.get_running_loop()
    table = desk.service.heartbeat.table
    await eventually(lambda: table.is_addressable("scheduler", "scheduler-2", loop.time()))
    desk.ask("first")
    waiting = desk.ask("waiting")
    await desk.gate.close()
    handed = waiting.sent[1]
    assert isinstance(handed, Journey)
    assert handed.itinerary[0].service == "scheduler"
    await peer.close()


async def test_the_requests_of_an_edge_that_died_leave_the_queue(desk: Desk) -> None:
    desk.ask("first")
    desk.ask("waiting")
    desk.gate.edge_gone("edge-1")
    assert [figures.requests for _, figures in desk.gate.figures()] == [0]


async def test_without_flow_control_nothing_waits(desk: Desk) -> None:
    text = (CONFIG % "20s").replace("flow_control:", "flow_control:\n      enabled: false")
    assert desk.configuration.offer_revision(2, text)
    assert [kinds(desk.ask(f"request-{number}")) for number in range(5)] == [["Decision"]] * 5


async def test_a_revision_that_makes_room_lets_waiting_requests_go(desk: Desk) -> None:
    desk.ask("first")
    waiting = desk.ask("waiting")
    assert isinstance(waiting.sent[0], Parked)
    assert desk.configuration.offer_revision(2, (CONFIG % "20s").replace("max_requests: 1", "max_requests: 10"))
    await eventually(lambda: len(waiting.sent) == 2)


async def test_a_pool_that_a_revision_removes_keeps_no_request_waiting_and_takes_none(desk: Desk) -> None:
    desk.ask("first")
    waiting = desk.ask("waiting")
    assert isinstance(waiting.sent[0], Parked)
    assert desk.configuration.offer_revision(2, "pools: {other: {models: [other]}}")
    assert kinds(waiting) == ["Parked", "Decision"], "it keeps the revision that it started with"
    desk.handlers.left("llama", "w1")
    late = desk.ask("late", revision=2)
    assert isinstance(refused := late.sent[0], Rejection)
    assert (refused.status, refused.code) == (404, "model_not_found")


async def test_a_pool_with_room_is_measured_again_soon_after_a_report_and_otherwise_after_a_while(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2, 20):
        desk.engine(f"w{number}")
    detector = desk.configuration.current.compiled["llama"].flow_control.detector
    saturation, now, measured = detector.saturation, time.monotonic(), list[float]()

    def watched(fleet: Fleet, at: float) -> float:
        measured.append(round(at - now, 3))
        return saturation(fleet, at)

    monkeypatch.setattr(detector, "saturation", watched)
    for number, after_s in enumerate((0.0, 0.009, 0.011, 0.049, 0.051, 0.06, 0.062)):
        if after_s == 0.06:
            desk.handlers.load(WorkerLoad(worker="w1", pool="llama", boot_id="1", sequence=2, at_ms=0))
        monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda at=now + after_s: at))
        assert kinds(desk.ask(f"r{number}")) == ["Decision"]
    assert measured == [0.0, 0.051, 0.062]


async def test_a_lower_ceiling_holds_the_next_request_back_although_others_just_passed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2, 11):
        desk.engine(f"w{number}")
    now = time.monotonic()
    for number, after_s in enumerate((0.0, 0.1, 0.1)):
        monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda at=now + after_s: at, time_ns=time.time_ns))
        assert kinds(desk.ask(f"r{number}")) == ["Decision"]
    lower = "flow_control:\n      bands: {0: {ceiling: 0.05}}"
    assert desk.configuration.offer_revision(2, (CONFIG % "20s").replace("flow_control:", lower))
    assert kinds(desk.ask("next", revision=2)) == ["Parked"]


def test_a_queue_wakes_on_the_loop_that_services_run_on() -> None:
    """uvloop's timers differ from asyncio's, on which the other tests run."""

    async def scenario() -> None:
        desk = Desk(MemoryNats(), "20s")
        desk.service.open()
        await desk.service.bus.wait_connected()
        desk.engine("w1")
        desk.ask("first")
        waiting = [desk.ask(f"waiting-{number}") for number in range(3)]
        for request_id in ("first", "waiting-0", "waiting-1"):
            desk.end(request_id)
            desk.handlers.load(WorkerLoad(worker="w1", pool="llama", boot_id="1", sequence=2, at_ms=0))
            await eventually(lambda: any(len(hop.sent) == 2 for hop in waiting))
            waiting.pop(0)
        await desk.service.close()

    uvloop.run(scenario())


async def test_blocks_that_are_not_of_the_pools_size_are_left_out_and_the_decision_says_so(desk: Desk) -> None:
    """They would match nothing and be remembered for nothing."""
    blocks = bytes(range(64))
    for request_id, block_tokens, held in (("other", 16, 0), ("own", 64, 8)):
        hop = desk.ask(request_id, blocks=blocks, block_tokens=block_tokens, prompt_tokens=512)
        decision = hop.sent[0]
        assert isinstance(decision, Decision)
        assert decision.level == ("full" if held else "degraded")
        assert decision.reasons == (
            () if held else ("prefix not known: hashed in blocks of 16 tokens, the pool has 64",)
        )
        assert desk.pools.of("llama").index.match(np.frombuffer(blocks, dtype="<u8")).max() == held
        desk.end(request_id)


FACTS: dict[str, object] = {
    "prompt_tokens": 1000, "tokens_exact": True, "max_output_tokens": 77, "stream": True, "block_tokens": 64,
    "blocks_precise": True, "headers": {"a": "b"}, "session": "s", "priority": 3, "fairness_id": "f", "body_bytes": 99,
    "slo_ttft_ms": 1.5, "slo_itl_ms": 2.5, "subset": ("e1",), "workers": ("e1",), "features": ("tools",),
}  # fmt: skip


async def test_plugins_see_each_fact_of_a_request_under_its_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.engine("e1")
    pool = desk.pools.of("llama")
    decide, seen = pool.decide, list[ScheduleRequest]()

    def watched(request: ScheduleRequest, now: float, seed: int, policy: Policy) -> outcome.Outcome:
        seen.append(request)
        return decide(request, now, seed, policy)

    monkeypatch.setattr(pool, "decide", watched)
    blocks = np.arange(1, 16, dtype="<u8")
    desk.ask("r1", attempt=2, blocks=blocks.tobytes(), **FACTS)  # pyright: ignore[reportArgumentType] - names of facts
    (request,) = seen
    assert {name: getattr(request.facts, name) for name in FACTS} == FACTS
    assert request.blocks.tolist() == blocks.tolist()
    assert (request.key, request.model, request.attempt) == (("edge-1", "r1"), "llama-8b", 2)
    assert (request.lora, request.queued_s, request.bound) == (None, 0.0, None)
