"""The stage on a bus: a journey without a model in, a journey with one out."""

from collections import Counter
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, RequestFacts, Stage
from pointsman_contracts.message import read_fields
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Rejection, Reply, read_reply
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_embedding.embedders import Embedders
from pointsman_hosting.configuration import Configuration
from pointsman_journey.content_client import ContentClient
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.handlers import Handlers
from pointsman_model_selector.prompt_embedding import PromptEmbedder
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

INBOX: Final = "_INBOX.test"
CONFIG: Final = """
pools: {a: {models: [base, tuned], loras: [tuned]}}
models:
  small: {pool: a, served_as: base, cost: {input: 1, output: 1}}
  fine: {pool: a, served_as: tuned, cost: {input: 9, output: 9}}
selectors:
  cheap: {models: [small, fine], filters: [healthy], scorers: [cost], fallbacks: 1}
  idle: {models: [small, fine], filters: [capable], scorers: [active-requests]}
  paused: {models: [small, fine], filters: [rate-limited], scorers: [cost]}
  blind: {models: [small], filters: [capable]}
  empty: {filters: [group]}
"""


class World:
    """An edge, a model-selector, and a scheduler that keeps what it gets."""

    def __init__(self, buses: Buses, config: str = CONFIG) -> None:
        self.registry = CollectorRegistry()
        self.edge: Journeys = buses.make("frontend")
        self.journeys: list[Journey] = []
        self.answers: list[Reply] = []
        configuration = Configuration(compile_all, self.registry)
        assert configuration.offer_revision(1, config), configuration.refused
        selector = buses.make("model-selector")
        embedder = PromptEmbedder(Embedders("none"), ContentClient(selector), self.registry)
        self.handlers = handlers = Handlers(configuration, self.registry, time_every=1, embedder=embedder)
        selector.stage(Journey, handlers.select)
        selector.bus.listen(PoolSnapshot, handlers.snapshot, ANY, keep="latest")
        selector.bus.listen(ModelStatistics, handlers.statistics, ANY, keep="latest")
        buses.make("scheduler").stage(Journey, self._keep)
        self.edge.bus.link.subscribe(INBOX, lambda _s, _r, _h, payload: self.answers.append(read_reply(payload)))

    def _keep(self, journey: Journey, hop: Hop[Journey]) -> None:
        del hop
        self.journeys.append(journey)

    def send(self, policy: str, **facts: object) -> None:
        request = read_fields(RequestFacts, {"api": "chat.completions", "blocks": bytes(8)} | facts)
        stages = (Stage(service="model-selector", policy=policy), Stage(service="scheduler"))
        body = (BodyEdit(field="model", value="auto"), BodyEdit(field="n", value=1))
        headers = (
            HeaderEdit(name="x-other", value="1"),
            HeaderEdit(name="x-model", value="auto", tells="model"),
            HeaderEdit(name="x-base", value="", tells="base_model"),
        )
        journey = builders.journey(
            *stages, model="auto", request=request, target=None, profile="outer", body=body, headers=headers
        )
        self.edge.forward(journey, INBOX)


@pytest.fixture
async def world(buses: Buses) -> World:
    made = World(buses)
    await buses.meet()
    return made


@pytest.mark.requirement("S0-51")
async def test_the_chosen_model_is_in_target_body_and_trail(world: World) -> None:
    world.edge.bus.publish(PoolSnapshot(pool="a", source="c", sequence=1, at_ms=1, models=("base", "tuned")), "a")

    async def fresh() -> Journey | None:
        world.journeys.clear()
        world.send("cheap")
        await eventually(lambda: world.journeys)
        return world.journeys[0] if world.journeys[0].level == "full" else None

    journey = await eventually(fresh)
    assert journey is not None
    assert journey.target is not None
    assert (journey.target.model, journey.target.pool) == ("base", "a")
    assert [(other.model, other.lora) for other in journey.alternatives] == [("tuned", "tuned")]
    assert journey.body == (BodyEdit(field="n", value=1), BodyEdit(field="model", value="base"))
    assert journey.request.blocks != bytes(8)
    assert journey.trail[-1].note is not None
    assert journey.trail[-1].note.startswith("cheap/default: small (1.00)")


@pytest.mark.requirement("S0-51")
async def test_headers_that_name_the_model_name_the_chosen_one(world: World) -> None:
    """From here the request is like one that names that model."""
    world.send("cheap")
    journey = (await eventually(lambda: world.journeys))[0]
    assert journey.headers == (
        HeaderEdit(name="x-other", value="1"),
        HeaderEdit(name="x-model", value="base", tells="model"),
        HeaderEdit(name="x-base", value="base", tells="base_model"),
    )
    assert [(other.lora, other.base) for other in journey.alternatives] == [("tuned", "base")]


@pytest.mark.requirement("S0-49")
async def test_a_selector_never_changes_the_profile(world: World) -> None:
    world.send("cheap")
    journey = (await eventually(lambda: world.journeys))[0]
    assert journey.profile == "outer"
    assert journey.model == "auto"
    assert [stage.service for stage in journey.itinerary] == ["scheduler"]


async def test_a_choice_without_fresh_pool_state_says_so(world: World) -> None:
    world.send("cheap")
    journey = (await eventually(lambda: world.journeys))[0]
    assert (journey.level, journey.reasons) == ("degraded", ("old state of a",))
    world.send("blind")
    await eventually(lambda: len(world.journeys) == 2)
    assert world.journeys[1].level == "full"


@pytest.mark.requirement("S0-45")
async def test_no_model_left_is_a_typed_429(world: World) -> None:
    world.send("blind", features=("vision",))
    answer = (await eventually(lambda: world.answers))[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code, answer.type) == (429, "no_model_available", "rate_limit_error")
    assert answer.profile == "outer"
    assert (
        world.registry.get_sample_value(
            "pointsman_model_selection_refused_total", {"selector": "blind", "code": "no_model_available"}
        )
        == 1
    )


async def test_a_selector_that_does_not_exist_is_the_operators_fault(world: World) -> None:
    world.send("nobody")
    answer = (await eventually(lambda: world.answers))[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (500, "no_selector")


async def test_completions_change_the_next_choice(world: World) -> None:
    world.edge.bus.publish(
        ModelStatistics(model="small", source="c", sequence=1, at_ms=1, requests=50, errors=40), "small"
    )

    async def avoided() -> bool:
        world.journeys.clear()
        world.send("cheap")
        await eventually(lambda: world.journeys)
        target = world.journeys[0].target
        return target is not None and target.model == "tuned"

    await eventually(avoided)


@pytest.mark.requirement("S0-55")
async def test_choices_and_plugin_times_are_counted(world: World) -> None:
    world.send("cheap")
    await eventually(lambda: world.journeys)
    assert (
        world.registry.get_sample_value("pointsman_model_selected_total", {"selector": "cheap", "model": "small"}) == 1
    )
    for kind, plugin in (("filter", "healthy"), ("scorer", "cost"), ("picker", "max-score")):
        assert (
            world.registry.get_sample_value(
                "pointsman_model_selector_plugin_seconds_count", {"kind": kind, "plugin": plugin}
            )
            == 1
        )


async def test_the_model_with_fewer_requests_under_way_is_chosen(world: World) -> None:
    async def choose(count: int) -> list[Journey]:
        before = len(world.journeys)
        for _ in range(count):
            world.send("idle")
        await eventually(lambda: len(world.journeys) == before + count)
        return world.journeys[before:]

    first = await choose(10)
    models = Counter(journey.target.model for journey in first if journey.target is not None)
    assert models == {"base": 5, "tuned": 5}
    for journey in first:
        if journey.target is not None and journey.target.model == "tuned":
            world.handlers.completed(
                ResponseCompleted(
                    request_id=journey.request_id, source=journey.edge, sequence=1, at_ms=0, pool="a", status=200,
                    outcome="ok",
                )
            )  # fmt: skip
    assert {journey.target.model for journey in await choose(4) if journey.target is not None} == {"tuned"}


@pytest.mark.requirement("CHAIN-1", "S0-13")
async def test_processors_run_once_the_model_is_selected(buses: Buses) -> None:
    after = "profiles: {outer: {processors: {after_model: [{use: set-headers, set: {x-chosen: '{model}'}}]}}}\n"
    world = World(buses, CONFIG + after)
    await buses.meet()
    world.send("blind")
    journey = (await eventually(lambda: world.journeys))[0]
    assert journey.headers[-1] == HeaderEdit(name="x-chosen", value="base")
    assert [report.stage for report in journey.trail][-2:] == ["model-selector", "model-selector/set-headers"]


@pytest.mark.parametrize("skew_ms", [-3_600_000, 0, 3_600_000])
async def test_a_providers_pause_ends_by_the_clock_of_the_host_that_reports_it(world: World, skew_ms: int) -> None:
    at_ms = builders.unix_ms() + skew_ms
    for model, pause_ms in (("small", 30_000), ("fine", -1_000)):
        told = ModelStatistics(
            model=model, source="c", sequence=1, at_ms=at_ms, limited_until_ms=at_ms + pause_ms, remaining=None
        )
        world.handlers.statistics(told)
    world.send("paused")
    await eventually(lambda: world.journeys)
    target = world.journeys[0].target
    assert target is not None
    assert target.model == "tuned"
