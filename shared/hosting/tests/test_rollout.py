"""When an edge begins requests with a new revision, with time as an argument."""

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.timing import TIMES
from pointsman_core.config import Config
from pointsman_hosting.configuration import Configuration
from pointsman_hosting.rollout import PATIENCE_S, Rollout
from pointsman_journey.presence import PresenceTable


class World:
    """An edge that runs revision 1, and the stages that it hears."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.table = PresenceTable()
        self.table.note_time(self.now)
        self.configuration = Configuration(_compile, CollectorRegistry())
        self.rollout = Rollout(self.configuration, self.table)
        self.configuration.offer_revision(1, "pools: {}")
        self.stages: dict[str, int] = {"scheduler-1": 1, "scheduler-2": 1}
        self.passes(TIMES.beat_s)

    def passes(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / TIMES.beat_s))):
            self.now += TIMES.beat_s
            self.table.note_time(self.now)
            for instance, revision in self.stages.items():
                self.table.receive_heartbeat("scheduler", instance, self.now, revision=revision)
            self.rollout.advance_revision(self.now)


def _compile(config: Config, revision: int) -> int:
    del config
    return revision


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_revision_is_used_at_once(world: World) -> None:
    assert world.rollout.current.number == 1


@pytest.mark.requirement("S0-28")
def test_requests_begin_with_a_revision_once_every_stage_runs_it(world: World) -> None:
    world.configuration.offer_revision(2, "edge: {}")
    world.passes(TIMES.beat_s)
    assert world.rollout.current.number == 1
    world.stages["scheduler-1"] = 2
    world.passes(TIMES.beat_s)
    assert world.rollout.current.number == 1
    world.stages["scheduler-2"] = 2
    world.passes(TIMES.beat_s)
    assert world.rollout.current.compiled == 2


def test_a_stage_that_refuses_a_revision_holds_it_up_for_less_than_a_second(world: World) -> None:
    world.configuration.offer_revision(2, "edge: {}")
    world.passes(TIMES.beat_s)
    world.passes(PATIENCE_S + TIMES.beat_s)
    assert world.rollout.current.number == 2


def test_a_later_revision_has_the_whole_patience_of_its_own(world: World) -> None:
    world.configuration.offer_revision(2, "edge: {}")
    world.passes(2 * TIMES.beat_s)
    world.configuration.offer_revision(3, "edge: {}")
    world.passes(2 * TIMES.beat_s)
    assert world.rollout.current.number == 1


@pytest.mark.parametrize("why", ["silent", "draining", "without configuration"])
def test_a_replica_that_takes_no_work_or_has_no_configuration_holds_nothing_up(world: World, why: str) -> None:
    world.stages["scheduler-2"] = 0 if why == "without configuration" else 1
    world.passes(TIMES.beat_s)
    if why != "without configuration":
        del world.stages["scheduler-2"]
    if why == "silent":
        world.passes(TIMES.service_silent_s + TIMES.beat_s)
    elif why == "draining":
        world.table.receive_heartbeat("scheduler", "scheduler-2", world.now, ready=False, revision=1)
    world.stages["scheduler-1"] = 2
    world.configuration.offer_revision(2, "edge: {}")
    world.passes(TIMES.beat_s)
    assert world.rollout.current.number == 2
