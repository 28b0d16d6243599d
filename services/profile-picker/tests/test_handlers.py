"""The stage on a bus: from the preprocessor's journey to the first stage of a profile."""

from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Rejection, Reply, read_reply
from pointsman_contracts.subjects import ANY
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.handlers import Handlers
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

INBOX: Final = "_INBOX.test"
CONFIG: Final = """
pools: {a: {models: [m]}}
models: {m: {pool: a, slo: {ttft: 5s, itl: 50ms, late: refuse}}}
selectors: {cheap: {}}
profiles:
  standard: {request: [scheduler]}
  auto: {request: [model-selector/cheap, scheduler], response: [guard]}
  overflow: {request: [scheduler], slo: {ttft: 800ms, class: interactive}}
profile-picker:
  use: rules
  rules:
    - {when: 'model == "auto"', profile: auto}
    - {when: 'fields.n > 3', profile: overflow}
    - {when: 'pools.a.saturation >= 1.0', profile: overflow}
  default: standard
"""


class World:
    """An edge, a profile-picker, and stages behind it that keep what they get."""

    def __init__(self, buses: Buses) -> None:
        self.registry = CollectorRegistry()
        self.edge: Journeys = buses.make("frontend")
        self.journeys: list[Journey] = []
        self.answers: list[Reply] = []
        self.configuration = Configuration(compile_routing, self.registry)
        assert self.configuration.offer_revision(1, CONFIG)
        self.handlers = Handlers(self.configuration, self.registry)
        picker = buses.make("profile-picker")
        picker.stage(Journey, self.handlers.pick)
        picker.bus.listen(PoolSnapshot, self.handlers.snapshot, ANY, keep="latest")
        buses.make("scheduler").stage(Journey, self._keep)
        buses.make("model-selector").stage(Journey, self._keep)
        self.edge.bus.link.subscribe(INBOX, lambda _s, _r, _h, payload: self.answers.append(read_reply(payload)))

    def _keep(self, journey: Journey, hop: Hop[Journey]) -> None:
        del hop
        self.journeys.append(journey)

    def send(self, model: str, revision: int = 1, **facts: object) -> None:
        request = read_fields(RequestFacts, {"api": "chat.completions", "blocks": bytes(8)} | facts)
        journey = builders.journey(
            "profile-picker", model=model, request=request, target=None, profile=None, revision=revision
        )
        self.edge.forward(journey, INBOX)


@pytest.fixture
async def world(buses: Buses) -> World:
    made = World(buses)
    await buses.meet()
    return made


async def test_a_named_model_goes_to_its_pool_with_the_default_profile(world: World) -> None:
    world.send("m")
    journey = (await eventually(lambda: world.journeys))[0]
    assert journey.profile == "standard"
    assert journey.target is not None
    assert (journey.target.model, journey.target.pool) == ("m", "a")
    assert [stage.service for stage in journey.itinerary] == ["scheduler"]
    assert journey.request.blocks != bytes(8)
    assert journey.trail[-1].note == "standard: default"


async def test_a_profile_with_a_selector_leaves_the_target_to_it(world: World) -> None:
    world.send("auto")
    journey = (await eventually(lambda: world.journeys))[0]
    assert journey.target is None
    assert [(stage.service, stage.policy) for stage in journey.itinerary] == [
        ("model-selector", "cheap"),
        ("scheduler", None),
    ]
    assert [stage.service for stage in journey.response] == ["guard"]
    assert journey.request.blocks == bytes(8)


@pytest.mark.requirement("SLO-1")
async def test_the_service_level_is_that_of_the_key_then_of_the_profile_then_of_the_model(world: World) -> None:
    key = {"slo_class": "gold", "slo_late": "spill", "slo_weight": 4.0, "slo_ttft_ms": 500.0}
    world.send("m")
    world.send("m", fields={"n": 4})
    world.send("m", fields={"n": 4}, attributes={"identity": {"slo": key}})
    world.send("auto", attributes={"identity": {"tenant": "t"}})
    await eventually(lambda: len(world.journeys) == 4)
    facts = [journey.request for journey in world.journeys]
    assert {(each.slo_ttft_ms, each.slo_itl_ms, each.slo_class, each.slo_late, each.slo_weight) for each in facts} == {
        (5000.0, 50.0, "m", "refuse", 1.0),
        (800.0, 50.0, "interactive", "serve", 1.0),
        (500.0, 50.0, "gold", "spill", 4.0),
        (None, None, "", "serve", 1.0),
    }


@pytest.mark.requirement("SLO-1")
async def test_a_client_s_times_count_where_no_level_has_shorter_ones(world: World) -> None:
    gold = {"slo_class": "gold", "slo_late": "serve", "slo_weight": 1.0, "slo_ttft_ms": 500.0}
    world.send("m", slo_ttft_ms=300.0, slo_itl_ms=70.0)
    world.send("m", slo_ttft_ms=300.0, attributes={"identity": {"slo": gold}})
    world.send("m", slo_ttft_ms=9000.0, attributes={"identity": {"slo": gold}})
    world.send("auto", slo_itl_ms=20.0)
    await eventually(lambda: len(world.journeys) == 4)
    facts = [journey.request for journey in world.journeys]
    assert {(each.slo_ttft_ms, each.slo_itl_ms, each.slo_class, each.is_promised) for each in facts} == {
        (5000.0, 70.0, "m", True),
        (500.0, 50.0, "gold", True),
        (9000.0, 50.0, "gold", True),
        (None, 20.0, "", False),
    }


async def test_an_unknown_model_is_answered_with_404(world: World) -> None:
    world.send("nobody")
    answer = (await eventually(lambda: world.answers))[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code, answer.param) == (404, "model_not_found", "model")
    assert "Known models: m" in answer.message


async def test_a_request_that_leaves_the_model_open_needs_a_profile_that_chooses_one(world: World) -> None:
    world.send("auto/cheap")
    answer = (await eventually(lambda: world.answers))[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert answer.message == (
        "No model is chosen for this request: its profile has no model-selector. Name a model: m."
    )


@pytest.mark.requirement("S0-36", "S0-37")
async def test_a_failing_rule_is_500_for_the_client_and_is_named_for_the_operator(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.send("m", fields={"n": "three"})
    world.send("m", fields={"n": "three"})
    await eventually(lambda: len(world.answers) == 2)
    answer = world.answers[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (500, "profile_pick_failed")
    assert "fields.n" not in answer.message
    assert world.registry.get_sample_value("pointsman_profile_pick_failed_total", {"rule": "rule 2"}) == 2
    told = [record for record in caplog.records if record.message == "pick_failed"]
    assert len(told) == 1
    assert "rule 2" in str(vars(told[0]))


async def test_a_pool_that_fills_up_sends_requests_elsewhere_and_old_state_is_reported(world: World) -> None:
    world.send("m")
    await eventually(lambda: world.journeys)
    assert world.journeys[0].level == "degraded"
    assert world.journeys[0].reasons == ("old state of a",)
    snapshot = PoolSnapshot(pool="a", source="c", sequence=1, at_ms=1, saturation=1.5)
    world.edge.bus.publish(snapshot, "a")

    async def overflows() -> bool:
        world.journeys.clear()
        world.send("m")
        await eventually(lambda: world.journeys)
        return world.journeys[0].profile == "overflow" and world.journeys[0].level == "full"

    await eventually(overflows)


@pytest.mark.requirement("S0-27", "S0-28")
async def test_requests_in_flight_keep_the_revision_that_they_began_with(world: World) -> None:
    assert world.configuration.offer_revision(2, CONFIG.replace("default: standard", "default: overflow"))
    world.send("m", revision=1)
    world.send("m", revision=2)
    await eventually(lambda: len(world.journeys) == 2)
    assert [journey.profile for journey in world.journeys] == ["standard", "overflow"]


async def test_a_bad_revision_changes_nothing(world: World) -> None:
    assert not world.configuration.offer_revision(2, CONFIG.replace("fields.n > 3", "fields.n >"))
    assert "rule 2" in world.configuration.refused[2]
    world.send("m", revision=2)
    assert (await eventually(lambda: world.journeys))[0].profile == "standard"


@pytest.mark.requirement("CHAIN-1", "S0-13")
async def test_processors_run_before_the_model_is_selected_and_after_it_where_none_is(world: World) -> None:
    processors = """
  auto: {request: [model-selector/cheap, scheduler], processors: {
    before_model: [{use: set-headers, set: {x-a: "{model}"}}],
    after_model: [{use: set-headers, name: late, set: {x-b: b}}]}}
  standard: {processors: {after_model: [{use: set-headers, set: {x-c: "{model}"}}]}}
"""
    config = CONFIG.replace("  standard: {request: [scheduler]}\n", "")
    config = config.replace("  auto: {request: [model-selector/cheap, scheduler], response: [guard]}\n", processors)
    assert world.configuration.offer_revision(2, config), world.configuration.refused
    world.send("auto", revision=2)
    world.send("m", revision=2)
    await eventually(lambda: len(world.journeys) == 2)
    told = {
        journey.profile: ([(edit.name, edit.value) for edit in journey.headers], [each.stage for each in journey.trail])
        for journey in world.journeys
    }
    assert told["auto"][0] == [("x-a", "")]
    assert told["standard"][0] == [("x-c", "m")]
    assert told["auto"][1][-2:] == ["profile-picker", "profile-picker/set-headers"]
