"""A stage in shadow decides and is reported; the request goes on as without it."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from pointsman_contracts.journey import BodyEdit, Journey, Stage, StageReport
from pointsman_contracts.reply import Decision, Rejection, read_reply
from pointsman_core.refusal import Refusal
from pointsman_journey.hop import Hop
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

SHADOW = Stage(service="guard", mode="shadow", on_error="allow", timeout_ms=100)


class World:
    """An edge, a scheduler that keeps what it gets, and a stage that may be in shadow."""

    def __init__(self, buses: Buses) -> None:
        self.buses = buses
        self.arrived: list[Journey] = []
        self.answers: list[object] = []
        self.edge = buses.make("frontend")
        self.edge.bus.link.subscribe(
            "_INBOX.test", lambda subject, reply, headers, payload: self.answers.append(read_reply(payload))
        )
        buses.make("scheduler").stage(Journey, self._keep)

    def _keep(self, journey: Journey, hop: Hop[Journey]) -> Decision:
        self.arrived.append(journey)
        return builders.decision(journey.request_id)

    async def arrives(self, stage: Stage = SHADOW) -> tuple[Journey, StageReport]:
        """The scheduler's journey behind the stage, and the stage's report."""
        await self.buses.meet()
        journey = builders.journey(stage, "scheduler")
        self.edge.forward(journey, "_INBOX.test")
        await eventually(lambda: self.arrived)
        [got] = self.arrived
        assert replace(got, itinerary=journey.itinerary, trail=()) == journey
        return got, got.trail[-1]


def refusing(journey: Journey, hop: Hop[Journey]) -> Rejection:
    return hop.refuse(Refusal(403, "No.", code="prompt_blocked"))


def changing(journey: Journey, hop: Hop[Journey]) -> Journey:
    return hop.advance(note="redacted 1", body=(BodyEdit(field="model", value="x"),), level="degraded")


async def failing(journey: Journey, hop: Hop[Journey]) -> Journey:
    raise KeyError


@pytest.mark.requirement("S3-3")
@pytest.mark.parametrize("service", ["guard", "gate"])
@pytest.mark.parametrize(
    ("handler", "outcome", "note"),
    [(refusing, "shadow_rejected", "403 prompt_blocked"), (changing, "shadow_passed", "redacted 1")],
)
async def test_the_decision_of_a_stage_in_shadow_is_reported_and_not_followed(
    buses: Buses,
    service: str,
    handler: Callable[[Journey, Hop[Journey]], Journey | Rejection],
    outcome: str,
    note: str,
) -> None:
    world = World(buses)
    buses.make(service).stage(Journey, handler)
    _, report = await world.arrives(replace(SHADOW, service=service))
    assert (report.stage, report.outcome, report.note) == (service, outcome, note)


async def test_a_stage_in_shadow_that_fails_changes_nothing(buses: Buses) -> None:
    world = World(buses)
    broken: Callable[[Journey, Hop[Journey]], Awaitable[Journey]] = failing
    buses.make("guard").stage(Journey, broken)
    journey, report = await world.arrives()
    assert (report.outcome, report.note) == ("skipped", "guard failed")
    assert journey.level == "full"


@pytest.mark.parametrize("service", ["guard", "gate"])
async def test_a_stage_in_shadow_without_replicas_changes_nothing(buses: Buses, service: str) -> None:
    journey, report = await World(buses).arrives(replace(SHADOW, service=service))
    assert report.outcome == "skipped"
    assert journey.level == "full"


async def test_the_notes_of_a_stage_in_shadow_for_its_way_back_stay(buses: Buses) -> None:
    def noting(journey: Journey, hop: Hop[Journey]) -> Journey:
        noted = tuple(replace(stage, memo="mine", on_error="allow") for stage in journey.response)
        return hop.advance(response=noted, level="degraded")

    world = World(buses)
    buses.make("guard").stage(Journey, noting)
    await buses.meet()
    world.edge.forward(builders.journey(SHADOW, "scheduler", response=(Stage(service="guard"),)), "_INBOX.test")
    await eventually(lambda: world.arrived)
    assert world.arrived[0].response == (Stage(service="guard", memo="mine"),)
    assert world.arrived[0].level == "full"
