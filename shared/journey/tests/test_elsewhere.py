"""A request that no scheduler is asked about: a provider serves it, or its pool has no room and another model does."""

import pytest

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, RequestFacts, Stage, StageReport, Target
from pointsman_contracts.reply import Decision, Rejection, Reply, read_reply
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.service_level import ServicePromise
from pointsman_contracts.subjects import ANY
from pointsman_core.settled_target import salted
from pointsman_journey.elsewhere import next_model
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

INBOX = "_INBOX.test.edge"
OUTSIDE = Target(model="gpt-large", provider="openai")
INSIDE = Target(model="llama-70b", pool="llama-70b")


class Edge:
    """Keeps the answers to journeys, and every published decision."""

    def __init__(self, service: Journeys) -> None:
        self.bus = service
        self.answers: list[Reply] = []
        self.told: list[RequestScheduled] = []
        service.bus.link.subscribe(INBOX, lambda _s, _r, _h, payload: self.answers.append(read_reply(payload)))
        service.bus.listen(RequestScheduled, self.told.append, ANY)

    async def send(self, journey: Journey) -> Reply:
        self.answers.clear()
        self.bus.forward(journey, INBOX)
        await eventually(lambda: self.answers)
        return self.answers[0]


@pytest.mark.requirement("S0-65", "S0-69")
async def test_a_request_for_a_provider_is_decided_without_any_scheduler_and_audit_sees_it(buses: Buses) -> None:
    edge = Edge(buses.make("profile-picker"))
    await buses.meet()
    journey = builders.journey("scheduler", target=OUTSIDE, alternatives=(INSIDE,), profile="standard")
    answer = await edge.send(journey)
    assert isinstance(answer, Decision)
    assert (answer.target, answer.alternatives) == (OUTSIDE, (INSIDE,))
    assert [(endpoint.worker, endpoint.url, endpoint.target) for endpoint in answer.endpoints] == [
        ("openai", "", OUTSIDE)
    ]
    await eventually(lambda: edge.told)
    event = edge.told[0]
    assert (event.request_id, event.pool, event.endpoints) == (journey.request_id, "-", ("openai",))
    assert event.reason == "the provider 'openai' serves gpt-large; after it llama-70b"


async def test_a_request_for_a_provider_keeps_its_service_level(buses: Buses) -> None:
    edge = Edge(buses.make("profile-picker"))
    await buses.meet()
    facts = RequestFacts(
        api="chat.completions", slo_ttft_ms=800.0, slo_itl_ms=40.0, slo_class="gold", slo_spilled_from="llama-70b"
    )
    answer = await edge.send(builders.journey("scheduler", target=OUTSIDE, request=facts))
    assert isinstance(answer, Decision)
    assert answer.promise == ServicePromise(service_class="gold", ttft_ms=800.0, itl_ms=40.0, spilled_from="llama-70b")
    without = await edge.send(builders.journey("scheduler", target=OUTSIDE))
    assert isinstance(without, Decision)
    assert without.promise is None


async def test_stages_before_the_scheduler_still_see_a_request_for_a_provider(buses: Buses) -> None:
    seen: list[str] = []
    guard, edge = buses.make("guard"), Edge(buses.make("profile-picker"))

    def check(journey: Journey, hop: Hop[Journey]) -> Journey:
        seen.append(journey.request_id)
        return hop.advance()

    guard.stage(Journey, check)
    await buses.meet()
    journey = builders.journey("guard", "scheduler", target=OUTSIDE)
    assert isinstance(await edge.send(journey), Decision)
    assert seen == [journey.request_id]


@pytest.mark.requirement("S0-70")
async def test_a_pool_without_room_hands_the_request_on_to_the_next_model(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("model-selector"))
    scheduler.stage(Journey, lambda journey, hop: hop.reject(429, "Full.", code="saturated"))
    await buses.meet()
    journey = builders.journey("scheduler", target=INSIDE, alternatives=(INSIDE, OUTSIDE))
    answer = await edge.send(journey)
    assert isinstance(answer, Decision)
    assert answer.target == OUTSIDE
    assert answer.body == (BodyEdit(field="model", value="gpt-large"),)
    await eventually(lambda: edge.told)
    assert [(report.stage, report.outcome, report.note) for report in edge.told[0].trail] == [
        ("scheduler", "rejected", "429 saturated"),
        ("scheduler", "rejected", "429 saturated"),
    ]


async def test_without_a_live_scheduler_the_next_model_serves(buses: Buses) -> None:
    edge = Edge(buses.make("model-selector"))
    await buses.meet()
    answer = await edge.send(builders.journey("scheduler", target=INSIDE, alternatives=(OUTSIDE,)))
    assert isinstance(answer, Decision)
    assert answer.target == OUTSIDE


async def test_a_request_that_is_wrong_is_wrong_everywhere(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("model-selector"))
    scheduler.stage(Journey, lambda journey, hop: hop.reject(400, "No."))
    await buses.meet()
    answer = await edge.send(builders.journey("scheduler", target=INSIDE, alternatives=(OUTSIDE,)))
    assert isinstance(answer, Rejection)


async def test_a_guard_without_anybody_is_not_passed_by_choosing_another_model(buses: Buses) -> None:
    edge = Edge(buses.make("profile-picker"))
    await buses.meet()
    answer = await edge.send(
        builders.journey(Stage(service="guard"), "scheduler", target=OUTSIDE, alternatives=(INSIDE,))
    )
    assert isinstance(answer, Rejection)
    assert answer.code == "stage_unavailable"


def test_the_next_model_gets_blocks_of_its_own() -> None:
    plain = bytes(range(32))
    facts = RequestFacts(api="completions", blocks=salted(plain, INSIDE.model, ""))
    other = Target(model="sql", pool="llama-8b", lora="sql")
    journey = builders.journey("scheduler", target=INSIDE, alternatives=(other,), request=facts)
    moved = next_model(journey, 429, StageReport(stage="scheduler", instance="s"))
    assert moved is not None
    assert (moved.target, moved.request.blocks) == (other, salted(plain, "sql", "sql"))


@pytest.mark.requirement("S1-14")
@pytest.mark.parametrize(
    ("other", "base"),
    [
        (Target(model="sql", pool="llama-8b", lora="sql", base="llama-8b"), "llama-8b"),
        (Target(model="sql", pool="llama-8b", lora="sql"), ""),
        (OUTSIDE, "gpt-large"),
    ],
)
def test_headers_that_name_the_model_name_the_next_one(other: Target, base: str) -> None:
    """The base header is empty when the base is unknown."""
    kept = (HeaderEdit(name="x-other", value="1"), HeaderEdit(name="x-model"))
    model, of_model = (HeaderEdit(name=name, value="llama-70b", tells=name) for name in ("model", "base_model"))
    journey = builders.journey("scheduler", target=INSIDE, alternatives=(other,), headers=(*kept, model, of_model))
    moved = next_model(journey, 429, StageReport(stage="scheduler", instance="s"))
    assert moved is not None
    assert moved.headers[:2] == kept
    assert [(edit.tells, edit.value) for edit in moved.headers[2:]] == [("model", other.model), ("base_model", base)]
