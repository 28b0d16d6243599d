"""Requests with a service level: served, refused or sent elsewhere when their pool would be late."""

import math
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, RequestFacts, StageReport, Target
from pointsman_contracts.reply import Decision, Parked, Rejection
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_hosting.configuration import Configuration
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.binding import Binding, Chooser
from pointsman_scheduler.configuration import compile_policies
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain.lateness import LONGEST_RETRY_S
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.service_levels import ServiceLevels
from pointsman_testing import builders, eventually
from pointsman_testing.buses import RecordedHop
from pointsman_testing.memory_nats import MemoryNats
from pointsman_testing.one_engine import teach_passes

SLOW: Final = Target(model="slow", pool="slow")
FAST: Final = Target(model="fast", pool="fast")
REMOTE: Final = Target(model="gpt", provider="openai")
PROMPT_MS: Final = {"slow": 4500.0, "fast": 450.0}
"""Of the prompt of 4,096 tokens, about."""
CONFIG: Final = """
pools: {slow: {models: [slow]}, fast: {models: [fast]}}
scheduling: {default: {flow_control: {detector: {use: concurrency, max_requests: %d}}}}
"""


class World:
    """One scheduler of two pools, with one engine each."""

    def __init__(self, max_requests: int = 100) -> None:
        """`max_requests`: those that an engine takes before others wait."""
        service = Journeys(Bus(MemoryNats().link(), Process("scheduler", "scheduler-1")))
        book, self.registry = PolicyBook(registries()), CollectorRegistry()
        self.configuration: Configuration[Mapping[str, Policy]] = Configuration(
            lambda config, _: compile_policies(book, config), self.registry
        )
        self.pools = Pools("scheduler-1", 2**24)
        metrics = SchedulerMetrics(self.registry, lambda: self.pools)
        announcer = DecisionPublisher(service.bus, service.heartbeat, self.pools, metrics)
        chooser = Chooser(self.configuration, self.pools, announcer, metrics)
        binding = Binding(self.pools, chooser.decide, announcer, lambda pool, stopped: None)
        levels = ServiceLevels(
            self.configuration, self.pools, metrics.late, lambda pool, priority: self.gate.foresee_wait(pool, priority)
        )
        self.gate = Gate(
            service.heartbeat,
            self.pools,
            metrics,
            binding,
            levels.hold_to_level,
            demand=DemandPublisher(service.bus, metrics),
        )
        assert self.configuration.offer_revision(1, CONFIG % max_requests)
        revision = self.configuration.current
        self.pools.use(revision.compiled, {name: pool.block_tokens for name, pool in revision.config.pools.items()})
        self.gate.apply_policies({name: policy.flow_control for name, policy in revision.compiled.items()})
        for name in ("slow", "fast"):
            self._engine(name)

    def _engine(self, pool: str) -> None:
        now, found = time.monotonic(), self.pools.of(pool)
        registration = WorkerRegistration(
            worker=f"{pool}-1", pool=pool, url=f"http://{pool}:8000", boot_id="1", agent="a", version="1",
            registered_ms=0, kv_blocks=4096, block_tokens=64,
        )  # fmt: skip
        found.register(registration, now)
        found.hear(WorkerLoad(worker=f"{pool}-1", pool=pool, boot_id="1", sequence=1, at_ms=0), now)

    def teach(self, pool: str, pass_ms: float, token_ms: float, *, decodes: bool = True) -> None:
        """Passes of the pool's engines take so long, and so much more for each prompt token; a decode step takes a
        fifth. `decodes`: answers have shown that."""
        forecast = self.configuration.current.compiled[pool].forecast
        assert forecast is not None
        teach_passes(forecast.best.model, pass_ms, token_ms, (1.0, 1.0))
        if decodes:
            for _ in range(5):
                forecast.best.model.learn_pass(np.array([0.0, 0.0, 0.0, 0.0, 30.0, 30.0, 0.1]), 6.0 * pass_ms, 1.0)

    def ask(
        self,
        ttft_ms: float | None,
        late: str = "serve",
        alternatives: tuple[Target, ...] = (),
        *,
        request_id: str = "r1",
        spent_ms: float = 0.0,
        stream: bool = False,
        itl_ms: float | None = None,
    ) -> RecordedHop[Journey]:
        facts = RequestFacts(
            api="chat.completions", stream=stream, prompt_tokens=4096, slo_ttft_ms=ttft_ms, slo_class="interactive",
            slo_late=late, slo_itl_ms=itl_ms,
        )  # fmt: skip
        journey = builders.journey(
            "scheduler", request_id=request_id, model="slow", target=SLOW, request=facts, alternatives=alternatives
        )
        journey = replace(
            journey,
            deadline_ms=time.time_ns() // 1_000_000 + 60_000,
            trail=(StageReport(stage="preprocessor", instance="p", took_ms=spent_ms),),
        )
        hop = RecordedHop(journey)
        hop.finish(self.gate.enter(journey, hop))
        return hop

    def waiting(self) -> int:
        """Requests that flow control holds."""
        return sum(figures.requests for _, figures in self.gate.figures())

    def late(self, outcome: str) -> float:
        labels = {"pool": "slow", "class": "interactive", "outcome": outcome}
        return self.registry.get_sample_value("pointsman_scheduler_late_total", labels) or 0.0


@pytest.fixture
def world() -> World:
    made = World()
    made.teach("slow", 400.0, 1.0)
    made.teach("fast", 40.0, 0.1)
    return made


def decision(hop: RecordedHop[Journey]) -> Decision:
    assert isinstance(hop.sent[0], Decision), hop.sent
    return hop.sent[0]


def rejection(hop: RecordedHop[Journey]) -> Rejection:
    assert isinstance(hop.sent[0], Rejection), hop.sent
    return hop.sent[0]


@pytest.mark.requirement("SLO-1")
async def test_a_request_in_time_gets_its_level_and_prediction_with_the_decision(world: World) -> None:
    promise = decision(world.ask(6000.0, "refuse", spent_ms=20.0)).promise
    assert promise is not None
    assert (promise.service_class, promise.ttft_ms, promise.itl_ms) == ("interactive", 6000.0, None)
    assert promise.predicted_ttft_ms is not None
    assert 0.5 * PROMPT_MS["slow"] < promise.predicted_ttft_ms < 6000.0
    assert decision(world.ask(None, request_id="r2")).promise is None


@pytest.mark.requirement("SLO-2")
async def test_a_request_that_would_be_late_is_refused_with_the_predicted_time(world: World) -> None:
    refused = rejection(world.ask(800.0, "refuse"))
    assert (refused.status, refused.code, refused.dropped_reason) == (
        429, "slo_unattainable", "rejected-slo-unattainable",
    )  # fmt: skip
    assert "is predicted after 4" in refused.message
    assert "'interactive' is 800 ms" in refused.message
    assert refused.retry_after_s is not None
    assert 3 <= refused.retry_after_s <= 5
    assert refused.promise is not None
    assert (refused.promise.service_class, refused.promise.ttft_ms) == ("interactive", 800.0)
    assert world.late("refused") == 1
    assert not len(world.pools.of("slow").books)


@pytest.mark.requirement("SLO-2")
async def test_time_spent_in_stages_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the machine takes between the two requests, the second one is no probe.
    monkeypatch.setattr("pointsman_scheduler.service_levels.PROBE_EVERY_S", math.inf)
    assert decision(world.ask(6000.0, "refuse")).promise is not None
    assert rejection(world.ask(6000.0, "refuse", request_id="r2", spent_ms=4000.0)).code == "slo_unattainable"


@pytest.mark.requirement("SLO-3")
async def test_a_request_that_would_be_late_is_spilled_to_the_first_model_that_is_in_time(world: World) -> None:
    moved = decision(world.ask(800.0, "spill", (FAST, REMOTE)))
    assert (moved.target, moved.endpoints[0].worker, moved.alternatives) == (FAST, "fast-1", (REMOTE,))
    assert [edit.value for edit in moved.body if edit.field == "model"] == ["fast"]
    assert world.late("spilled") == 1
    assert moved.promise is not None
    assert moved.promise.spilled_from == "slow"
    went_on = world.ask(100.0, "spill", (FAST, REMOTE), request_id="r2").sent[0]
    assert isinstance(went_on, Journey)
    assert (went_on.target, went_on.request.slo_spilled_from) == (REMOTE, "slow")


@pytest.mark.requirement("SLO-3")
async def test_a_request_without_a_model_in_time_is_served_late_and_counted(world: World) -> None:
    for number, late in enumerate(("serve", "spill")):
        served = decision(world.ask(100.0, late, (FAST,), request_id=f"r{number}"))
        assert served.target == SLOW
    assert world.late("served") == 2


async def test_unknown_times_refuse_and_move_nothing() -> None:
    world = World()
    promise = decision(world.ask(1.0, "refuse")).promise
    assert promise is not None
    assert promise.predicted_ttft_ms is None
    assert decision(world.ask(1.0, "spill", (FAST,), request_id="r2")).target == SLOW


@pytest.mark.requirement("SLO-2")
async def test_a_request_whose_time_runs_out_in_the_queue_is_refused_then() -> None:
    world = World(max_requests=1)
    assert decision(world.ask(None, request_id="first")).target == SLOW
    hop = world.ask(50.0, "refuse", request_id="second")
    assert isinstance(hop.sent[0], Parked)
    assert await eventually(lambda: len(hop.sent) > 1)
    refused = hop.sent[1]
    assert isinstance(refused, Rejection)
    assert (refused.status, refused.code) == (429, "slo_unattainable")


@pytest.mark.requirement("SLO-4")
async def test_while_others_wait_a_request_in_time_waits_for_its_engine_only_and_a_late_one_behind_them() -> None:
    world = World(max_requests=1)
    world.teach("slow", 400.0, 1.0)
    assert decision(world.ask(None, request_id="first")).target == SLOW
    assert isinstance(world.ask(None, request_id="without", stream=True).sent[0], Parked)
    assert world.waiting() == 1
    world.ask(20_000.0, request_id="in-time", stream=True)
    assert world.waiting() == 1
    assert isinstance(world.ask(800.0, request_id="late", stream=True).sent[0], Parked)
    assert world.waiting() == 2


@pytest.mark.requirement("SLO-2")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ttft_ms", [20_000.0, None])
async def test_a_request_whose_tokens_would_come_too_slowly_is_refused_with_the_predicted_time(
    world: World, ttft_ms: float | None, stream: bool
) -> None:
    refused = rejection(world.ask(ttft_ms, "refuse", itl_ms=40.0, stream=stream))
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "slo_unattainable", LONGEST_RETRY_S)
    assert "ms are predicted between tokens; the service level 'interactive' is 40 ms" in refused.message
    assert world.late("refused") == 1


@pytest.mark.requirement("SLO-3")
@pytest.mark.parametrize("ttft_ms", [20_000.0, None])
async def test_a_request_whose_tokens_would_come_too_slowly_is_spilled_or_served_and_counted(
    world: World, ttft_ms: float | None
) -> None:
    moved = decision(world.ask(ttft_ms, "spill", (FAST,), itl_ms=40.0))
    assert moved.target == FAST
    assert moved.promise is not None
    assert moved.promise.predicted_itl_ms is not None
    assert moved.promise.predicted_itl_ms <= 40.0
    served = decision(world.ask(ttft_ms, "serve", itl_ms=40.0, request_id="r2"))
    assert served.promise is not None
    assert (served.promise.predicted_itl_ms or 0.0) > 40.0
    assert (world.late("spilled"), world.late("served")) == (1, 1)


@pytest.mark.requirement("SLO-2")
async def test_a_request_held_to_the_time_between_tokens_alone_is_refused_beside_answers_that_leave_no_room(
    world: World,
) -> None:
    world.teach("slow", 25.0, 0.01)
    assert decision(world.ask(None, "refuse", itl_ms=5.6)).target == SLOW
    for number in range(5):
        decision(world.ask(None, request_id=f"crowd{number}"))
    refused = rejection(world.ask(None, "refuse", itl_ms=5.6, request_id="last"))
    assert "ms are predicted between tokens" in refused.message
    # A client's own wish refuses nothing.
    assert decision(world.ask(None, itl_ms=1.0, request_id="wish")).target == SLOW


@pytest.mark.parametrize("ttft_ms", [20_000.0, None])
@pytest.mark.parametrize("first_tokens", [False, True])
async def test_unknown_times_between_tokens_refuse_and_move_nothing(ttft_ms: float | None, first_tokens: bool) -> None:
    world = World()
    if first_tokens:
        world.teach("slow", 400.0, 0.1, decodes=False)
        world.teach("fast", 40.0, 0.1, decodes=False)
    promise = decision(world.ask(ttft_ms, "refuse", itl_ms=0.1)).promise
    assert promise is not None
    assert promise.predicted_itl_ms is None
    assert decision(world.ask(ttft_ms, "spill", (FAST,), itl_ms=0.1, request_id="r2")).target == SLOW
