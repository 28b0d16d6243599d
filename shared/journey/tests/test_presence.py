"""Who lives and where the next message goes, with time as an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman_contracts.timing import TIMES
from pointsman_journey.presence import FORGOTTEN_AFTER_S, Direct, Group, NoInstance, PresenceTable


class World:
    """A table in a process that runs: it ticks while time passes, and the living beat."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.table = PresenceTable()
        self.table.note_time(self.now)
        self.beating: dict[str, bool] = {}
        self.routes: dict[str, tuple[str, ...]] = {}

    def lives(self, instance: str, *, ready: bool = True, routes: tuple[str, ...] = ()) -> None:
        self.beating[instance] = ready
        self.routes[instance] = routes
        self._beat(instance)

    def stops(self, instance: str) -> None:
        del self.beating[instance]

    def passes(self, seconds: float, *, listening: bool = True) -> None:
        for _ in range(round(seconds / TIMES.beat_s)):
            self.now += TIMES.beat_s
            self.table.note_time(self.now, listening=listening)
            if listening:
                for instance in self.beating:
                    self._beat(instance)

    def where(
        self, route: str | None = None, *, resent: bool = False, patient: bool = False
    ) -> Group | Direct | NoInstance:
        return self.table.find_route("scheduler", route, self.now, resent=resent, patient=patient)

    def _beat(self, instance: str) -> None:
        self.table.receive_heartbeat(
            "scheduler", instance, self.now, ready=self.beating[instance], routes=self.routes[instance]
        )


@pytest.fixture
def world() -> World:
    return World()


def test_an_instance_has_a_live_peer_while_another_one_beats(world: World) -> None:
    def has_peer(instance: str) -> bool:
        return world.table.has_live_peer("scheduler", instance, world.now)

    assert not has_peer("a")
    world.lives("a")
    assert not has_peer("a")
    world.lives("b")
    assert has_peer("a")
    assert has_peer("b")
    world.stops("b")
    world.passes(2 * TIMES.service_lost_s)
    assert not has_peer("a")
    assert has_peer("b")


def test_no_instance_is_known_before_the_first_beat(world: World) -> None:
    assert world.where() == NoInstance()


def test_while_all_live_the_server_deals(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.passes(5)
    assert world.where() == Group()


def test_while_one_is_silent_the_others_are_addressed_in_turn(world: World) -> None:
    for name in "abc":
        world.lives(name)
    world.stops("b")
    world.passes(TIMES.service_silent_s - TIMES.beat_s)
    assert world.where() == Group()
    world.passes(2 * TIMES.beat_s)
    assert {world.where() for _ in range(10)} == {Direct("a"), Direct("c")}


def test_a_silent_one_that_beats_again_is_dealt_to_again(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.stops("b")
    world.passes(3)
    assert world.where() == Direct("a")
    world.lives("b")
    assert world.where() == Group()


def test_when_the_last_one_falls_silent_no_instance_is_left(world: World) -> None:
    world.lives("a")
    world.stops("a")
    world.passes(1)
    assert world.where() == NoInstance()
    assert not world.table.is_alive("scheduler", "a", world.now)


def test_without_another_way_requests_go_to_the_replica_heard_of_last_until_that_is_lost(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.stops("a")
    world.passes(TIMES.beat_s)
    world.stops("b")
    world.passes(TIMES.service_silent_s + TIMES.beat_s)
    assert world.where() == NoInstance()
    assert world.where(patient=True) == world.where(patient=True, resent=True) == Direct("b")
    world.lives("a")
    assert world.where(patient=True) == Direct("a")
    world.stops("a")
    world.passes(TIMES.service_lost_s + TIMES.beat_s)
    assert world.where(patient=True) == NoInstance()


def test_a_stage_that_may_take_longer_is_asked_for_longer(world: World) -> None:
    world.table.lost_after_s = 2 * TIMES.service_lost_s
    world.lives("a")
    world.stops("a")
    world.passes(TIMES.service_lost_s + TIMES.beat_s)
    assert (world.where(), world.where(patient=True)) == (NoInstance(), Direct("a"))
    world.passes(TIMES.service_lost_s)
    assert world.where(patient=True) == NoInstance()


def test_while_this_process_runs_late_others_may_be_silent_for_longer(world: World) -> None:
    world.lives("a")
    world.stops("a")
    world.passes(TIMES.service_silent_s + TIMES.beat_s)
    assert world.where() == NoInstance()
    world.table.note_time(world.now, slack_s=1.0)
    assert world.where() == Group()
    assert world.table.is_alive("scheduler", "a", world.now)
    world.table.note_time(world.now, slack_s=0.0)
    assert not world.table.is_alive("scheduler", "a", world.now)


def test_one_that_said_goodbye_is_not_waited_for(world: World) -> None:
    world.lives("a")
    world.lives("a", ready=False)
    world.stops("a")
    world.passes(1)
    assert world.where(patient=True) == NoInstance()


def test_one_that_the_server_does_not_know_is_not_addressed_until_it_beats(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.table.mark_unreachable("scheduler", "a")
    assert world.where() == world.where(patient=True) == Group()
    world.table.mark_unreachable("scheduler", None)
    assert world.where() == world.where(patient=True) == NoInstance()
    world.lives("b")
    assert world.where(resent=True) == Direct("b")


def test_a_silent_replica_is_waited_for_briefly_and_one_that_said_goodbye_for_longer(world: World) -> None:
    def hope(route: str | None = None, service: str = "scheduler") -> float:
        return round(world.table.hold_time_left(service, route, 3.0, 30.0, world.now), 6)

    world.lives("a", routes=("small",))
    world.stops("a")
    world.passes(2)
    assert (hope("small"), hope(), hope("large"), hope(service="preprocessor")) == (1, 1, 0, 0)
    world.passes(2)
    assert hope() <= 0
    world.lives("b", routes=("small",))
    world.lives("b", ready=False, routes=("small",))
    world.stops("b")
    world.passes(2)
    assert hope() == 28
    world.passes(28)
    assert hope() <= 0


def test_a_replica_that_the_server_does_not_know_any_more_is_waited_for_as_one_that_left(world: World) -> None:
    world.lives("a")
    world.table.mark_unreachable("scheduler", None)
    world.stops("a")
    world.passes(2)
    assert round(world.table.hold_time_left("scheduler", None, 3.0, 30.0, world.now), 6) == 28


def test_a_silent_one_is_remembered_as_long_as_the_server_may_deal_to_it(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.stops("b")
    world.passes(FORGOTTEN_AFTER_S - 1)
    assert world.where() == Direct("a")
    world.passes(2)
    assert world.where() == Group()
    assert world.table.list_instances("scheduler", world.now) == {"a": True}


def test_one_that_left_its_group_before_it_fell_silent_is_not_gone_around(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.lives("b", ready=False)
    world.stops("b")
    world.passes(3)
    assert world.where() == Group()


def test_one_that_is_not_ready_is_not_addressed(world: World) -> None:
    world.lives("a", ready=False)
    world.passes(1)
    assert world.where() == NoInstance()
    assert world.table.is_alive("scheduler", "a", world.now)


def test_a_re_sent_message_goes_to_the_one_heard_of_last(world: World) -> None:
    world.lives("swallowed-it")
    world.lives("alive")
    world.stops("swallowed-it")
    world.passes(2 * TIMES.beat_s)
    assert world.where() == Group()
    assert world.where(resent=True) == Direct("alive")


def test_only_those_that_serve_the_route_count(world: World) -> None:
    world.lives("a", routes=("small",))
    world.lives("b", routes=("large", "small"))
    world.lives("c")
    world.passes(1)
    assert world.where("small") == Group()
    world.stops("a")
    world.passes(1)
    assert world.where("large") == Group()
    assert world.where("small") in (Direct("b"), Direct("c"))
    world.stops("c")
    world.passes(1)
    assert world.where("medium") == NoInstance()


def test_no_instance_falls_silent_while_this_process_hears_nothing(world: World) -> None:
    world.lives("a")
    world.lives("b")
    world.passes(60, listening=False)
    assert world.where() == Group()
    world.stops("b")
    world.passes(1)
    assert world.where() == Direct("a")


def test_no_instance_falls_silent_while_this_process_was_stopped(world: World) -> None:
    world.lives("a")
    world.now += 30  # no tick, as under SIGSTOP
    assert world.where() == Group()
    world.table.note_time(world.now)
    assert world.where() == Group()
    world.passes(1)
    world.stops("a")
    world.passes(1)
    assert world.where() == NoInstance()


class ReplicasComeAndGo(RuleBasedStateMachine):
    """Through all that happens to the replicas, no message is sent to one that has been silent, and none is refused
    while one lives."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(instance=st.sampled_from("abcd"), ready=st.booleans())
    def beats(self, instance: str, ready: bool) -> None:
        self.world.lives(instance, ready=ready)

    @rule(instance=st.sampled_from("abcd"))
    def stops(self, instance: str) -> None:
        self.world.beating.pop(instance, None)

    @rule(seconds=st.sampled_from([0.2, 0.4, 0.8, 2.0]), listening=st.booleans())
    def time_passes(self, seconds: float, listening: bool) -> None:
        self.world.passes(seconds, listening=listening)

    @invariant()
    def the_address_is_alive(self) -> None:
        living = {name for name, ready in self.world.beating.items() if ready}
        for resent in (False, True):
            where = self.world.where(resent=resent)
            if isinstance(where, Direct):
                assert self.world.table.is_addressable("scheduler", where.instance, self.world.now)
            if living:
                assert where != NoInstance()


TestReplicasComeAndGo = ReplicasComeAndGo.TestCase


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_time_never_runs_backwards_for_the_table(moments: list[float]) -> None:
    table = PresenceTable()
    for moment in sorted(moments):
        table.note_time(moment)
        table.receive_heartbeat("s", "a", moment)
        assert table.is_alive("s", "a", moment)
