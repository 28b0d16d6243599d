"""Model and engine, chosen together: a journey with an open model comes in, a decision goes out."""

import time
from collections.abc import Mapping

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import HeaderEdit, Journey, RequestFacts, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.model_choice import ModelChoice, ModelOption
from pointsman_contracts.reply import Decision, Rejection
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.settled_target import left_open, salted
from pointsman_hosting.configuration import Configuration
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.binding import Binding, Chooser
from pointsman_scheduler.configuration import compile_policies
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.joint_choice import JointChooser
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.plugins import registries
from pointsman_testing import builders
from pointsman_testing.buses import RecordedHop
from pointsman_testing.memory_nats import MemoryNats
from pointsman_testing.one_engine import teach_passes

BLOCKS = Blob(np.arange(1, 33, dtype="<u8").tobytes())
"""Half a prompt of 4,096 tokens."""
SMALL = ModelOption(
    name="small", target=Target(model="small-8b", pool="small"), block_tokens=64, input_price=1_000_000_000,
    cached_price=1_000_000_000, output_price=1_000_000_000, output_tokens=100.0, quality=0.5,
)  # fmt: skip
LARGE = ModelOption(
    name="large", target=Target(model="large-70b", pool="large"), block_tokens=64, input_price=9_000_000_000,
    cached_price=9_000_000_000, output_price=9_000_000_000, output_tokens=100.0, quality=0.9,
)  # fmt: skip
REMOTE = ModelOption(
    name="remote", target=Target(model="gpt", provider="openai"), input_price=5_000_000_000, output_tokens=100.0,
    quality=0.8, first_token_ms=300.0, token_ms=5.0,
)  # fmt: skip


class World:
    """One scheduler of two pools, with one engine each."""

    def __init__(self) -> None:
        service = Journeys(Bus(MemoryNats().link(), Process("scheduler", "scheduler-1")))
        book = PolicyBook(registries())
        registry = CollectorRegistry()
        self.configuration: Configuration[Mapping[str, Policy]] = Configuration(
            lambda config, _: compile_policies(book, config), registry
        )
        self.pools = Pools("scheduler-1", 2**24)
        self.metrics = SchedulerMetrics(registry, lambda: self.pools)
        announcer = DecisionPublisher(service.bus, service.heartbeat, self.pools, self.metrics)
        chooser = Chooser(self.configuration, self.pools, announcer, self.metrics)
        binding = Binding(self.pools, chooser.decide, announcer, lambda pool, stopped: None)
        self.full: set[str] = set()
        joint = JointChooser(
            self.configuration, self.pools, self.metrics.models_chosen, lambda pool, _: pool not in self.full
        )
        self.gate = Gate(
            service.heartbeat,
            self.pools,
            self.metrics,
            binding,
            joint.settle_model,
            demand=DemandPublisher(service.bus, self.metrics),
        )
        document = "pools: {small: {models: [small-8b]}, large: {models: [large-70b]}}"
        assert self.configuration.offer_revision(1, document)
        revision = self.configuration.current
        self.pools.use(revision.compiled, {name: pool.block_tokens for name, pool in revision.config.pools.items()})
        self.gate.apply_policies({name: policy.flow_control for name, policy in revision.compiled.items()})

    def engine(self, pool: str) -> None:
        now = time.monotonic()
        found = self.pools.of(pool)
        found.register(
            WorkerRegistration(
                worker=f"{pool}-1", pool=pool, url=f"http://{pool}:8000", boot_id="1", agent="a", version="1",
                registered_ms=0, kv_blocks=4096, block_tokens=64,
            ),
            now,
        )  # fmt: skip
        found.hear(WorkerLoad(worker=f"{pool}-1", pool=pool, boot_id="1", sequence=1, at_ms=0), now)

    def teach(self, pool: str, pass_ms: float, token_ms: float) -> None:
        """Passes of the pool's engines take so long, and so much more for each prompt token."""
        forecast = self.configuration.current.compiled[pool].forecast
        assert forecast is not None
        teach_passes(forecast.best.model, pass_ms, token_ms, (1.0, 1.0))

    def ask(self, choice: ModelChoice, request_id: str = "r1", attempt: int = 1) -> Decision | Rejection | Journey:
        first = next(option.target for option in choice.options if option.target.pool is not None)
        facts = RequestFacts(api="chat.completions", prompt_tokens=4096, blocks=BLOCKS)
        headers = (HeaderEdit(name="x-model", value="", tells="model"),)
        journey = builders.journey(
            "scheduler",
            request_id=request_id,
            attempt=attempt,
            model="auto",
            target=None,
            request=facts,
            headers=headers,
        )
        journey = journey.changed(**left_open(journey, choice, first))
        hop = RecordedHop(journey)
        outcome = self.gate.enter(journey, hop)
        assert isinstance(outcome, Decision | Rejection | Journey)
        return outcome

    def engine_of(self, choice: ModelChoice, request_id: str = "r1") -> str:
        decision = self.ask(choice, request_id)
        assert isinstance(decision, Decision), decision
        return decision.endpoints[0].worker


@pytest.fixture
def world() -> World:
    made = World()
    for pool in ("small", "large"):
        made.engine(pool)
    made.teach("small", 400.0, 1.0)  # 4,096 tokens take 4.5 s
    made.teach("large", 40.0, 0.1)  # 0.45 s
    return made


def cheapest(within_ms: float, *options: ModelOption, strict: bool = False) -> ModelChoice:
    return ModelChoice(
        options=options or (SMALL, LARGE), money=1.0, most_first_token_ms=within_ms, strict=strict, fallbacks=1
    )


@pytest.mark.requirement("CHOICE-1")
async def test_model_and_engine_are_chosen_together_by_what_each_pool_would_take_now(world: World) -> None:
    assert world.engine_of(cheapest(60_000.0)) == "small-1"
    assert world.engine_of(cheapest(2_000.0), "r2") == "large-1"


@pytest.mark.requirement("CHOICE-1")
async def test_the_cache_that_a_change_of_model_loses_counts_as_time(world: World) -> None:
    choice = cheapest(3_500.0)  # the whole prompt takes small 4.5 s, the half that it doesn't hold 2.5 s
    assert world.engine_of(choice, "cold") == "large-1"
    assert world.engine_of(cheapest(60_000.0), "warming") == "small-1"
    books, now = world.pools.of("small").books, time.monotonic()
    books.started(("edge-1", "warming"), "small-1", 5.0, now)
    books.completed(("edge-1", "warming"), now, ok=True, output_tokens=1)
    assert world.engine_of(choice, "warm") == "small-1"


@pytest.mark.requirement("CHOICE-1")
async def test_the_decision_is_that_of_the_model_with_its_own_name_blocks_and_fallbacks(world: World) -> None:
    decision = world.ask(cheapest(2_000.0))
    assert isinstance(decision, Decision)
    assert decision.target == LARGE.target
    assert decision.alternatives == (SMALL.target,)
    assert [(edit.field, edit.value) for edit in decision.body] == [("model", "large-70b")]
    assert decision.headers[0].value == "large-70b"
    hold = world.pools.of("large").books.find_reservation(("edge-1", "r1"))
    assert hold is not None
    assert hold.change.blocks == salted(BLOCKS, "large-70b", "")


async def test_a_model_of_a_provider_may_win_by_what_its_answers_took(world: World) -> None:
    journey = world.ask(cheapest(350.0, SMALL, REMOTE))
    assert isinstance(journey, Journey)
    assert journey.target == REMOTE.target
    assert journey.joint is None
    assert journey.models is not None
    assert (journey.models[0].model, journey.models[0].verdict) == ("remote", "chosen")


async def test_a_pool_without_engines_is_left_out() -> None:
    lonely = World()
    lonely.engine("large")
    assert lonely.engine_of(cheapest(60_000.0)) == "large-1"


async def test_a_pool_whose_requests_wait_for_admission_comes_last(world: World) -> None:
    world.full.add("small")
    assert world.engine_of(cheapest(60_000.0)) == "large-1"


async def test_a_strict_choice_beyond_its_limits_is_a_429_with_the_times(world: World) -> None:
    rejection = world.ask(cheapest(1.0, strict=True))
    assert isinstance(rejection, Rejection)
    assert rejection.status == 429
    assert "small: beyond a limit: first token" in rejection.message


async def test_a_request_that_is_sent_again_keeps_the_model_that_it_is_on_the_books_of(world: World) -> None:
    assert world.engine_of(cheapest(60_000.0)) == "small-1"
    again = world.ask(cheapest(2_000.0), attempt=2)
    assert isinstance(again, Decision)
    assert again.target == SMALL.target


async def test_another_model_that_a_stage_settled_since_stays(world: World) -> None:
    other = Target(model="large-70b", pool="large")
    facts = RequestFacts(api="chat.completions", prompt_tokens=4096, blocks=BLOCKS)
    journey = builders.journey("scheduler", model="auto", target=None, request=facts)
    journey = journey.changed(**left_open(journey, ModelChoice(options=(SMALL,), money=1.0), SMALL.target))
    journey = journey.changed(target=other)
    outcome = world.gate.enter(journey, RecordedHop(journey))
    assert isinstance(outcome, Decision)
    assert outcome.target == other
