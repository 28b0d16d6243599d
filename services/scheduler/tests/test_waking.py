"""One sleeping engine is woken at a time, and one that doesn't come is left alone for longer and longer."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.demand import LONGEST_PAUSE_S, PAUSE_S
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.config.flow_control import Wake
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_scheduler.domain.serving import count_endpoints
from pointsman_scheduler.domain.waking import SETTLED_S, WakeOrders

ON: Final = Wake(enabled=True, serve_within=30.0)


class Pool:
    def __init__(self, *names: str) -> None:
        self.fleet, self.orders = Fleet(), WakeOrders()
        for name in names:
            self.start(name)
            self.set(name, "asleep")

    def start(self, name: str, boot_id: str = "1", role: str = "both") -> None:
        self.fleet.register(
            WorkerRegistration(
                worker=name,
                pool="p",
                url=f"http://{name}",
                boot_id=boot_id,
                agent="a",
                version="1",
                registered_ms=0,
                role=role,
            )
        )

    def set(self, name: str, state: str, wake_failed: str = "", now: float = 0.0, boot_id: str = "1") -> None:
        load = WorkerLoad(
            worker=name, pool="p", boot_id=boot_id, sequence=1, at_ms=0, state=state, wake_failed=wake_failed
        )
        self.fleet.hear(load, now)
        self.fleet.refresh(now)

    def choose(self, now: float, waiting: int = 20, settings: Wake = ON) -> tuple[list[str], list[str]]:
        self.fleet.refresh(now)
        due, failed = self.orders.choose_orders(self.fleet.workers, waiting, now, settings)
        return [worker.name for worker in due], sorted(failed)


def test_one_engine_is_ordered_to_wake_again_and_again_until_it_serves() -> None:
    pool = Pool("a", "b", "c")
    assert [pool.choose(at) for at in (0.0, 0.5, 1.0)] == [(["a"], []), ([], []), (["a"], [])]
    pool.set("a", "serving")
    assert pool.choose(1.1) == ([], [])
    assert pool.orders.close_demand(pool.fleet.workers, 1.2) == ["a"]
    assert pool.orders.pending == ()


def test_the_next_engine_is_woken_when_the_first_one_does_not_serve_in_time() -> None:
    pool = Pool("a", "b")
    pool.choose(0.0)
    assert pool.choose(30.1) == (["b"], ["a"])


def test_the_next_engine_is_woken_at_once_when_the_agent_says_that_the_first_one_can_not_be() -> None:
    pool = Pool("a", "b")
    pool.choose(0.0)
    pool.set("a", "asleep", wake_failed="/wake_up answers 404")
    assert pool.choose(0.2) == ([], [])  # said of an earlier order, perhaps
    assert pool.choose(1.1) == (["b"], ["a"])


def test_an_engine_that_its_agent_could_not_wake_is_tried_last() -> None:
    pool = Pool("a", "b")
    pool.set("a", "asleep", wake_failed="/wake_up answers 404")
    assert pool.choose(0.0) == (["b"], [])


def test_demand_wakes_more_engines_where_it_is_told_how_much_one_takes() -> None:
    pool = Pool("a", "b", "c", "d")
    settings = Wake(enabled=True, requests_per_engine=10)
    assert pool.choose(0.0, waiting=20, settings=settings) == (["a", "b"], [])
    assert pool.choose(0.1, waiting=21, settings=settings) == (["c"], [])


def test_an_engine_that_sleeps_again_at_once_pauses_and_one_that_lasted_does_not() -> None:
    for lasted_s, failed in ((1.0, ["a"]), (SETTLED_S, list[str]())):
        pool = Pool("a")
        pool.choose(0.0)
        pool.set("a", "serving")
        pool.orders.close_demand(pool.fleet.workers, 1.0)
        pool.set("a", "asleep")
        due, found = pool.choose(1.0 + lasted_s)
        assert (due, found) == ([] if failed else ["a"], failed)


def test_a_new_life_of_an_engine_has_nothing_to_answer_for() -> None:
    pool = Pool("a")
    pool.choose(0.0)
    pool.start("a", boot_id="2")
    pool.set("a", "asleep", boot_id="2")
    assert pool.choose(0.1) == (["a"], [])


def test_an_engine_that_is_gone_is_forgotten() -> None:
    pool = Pool("a", "b")
    pool.choose(0.0)
    pool.fleet.remove("a", 0.1)
    assert pool.choose(0.2) == (["b"], [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["asleep", "serving", "not_ready", "unreachable", "draining"]),
            st.sampled_from(["", "it can't"]),
            st.floats(0.0, 40.0),
        ),
        max_size=60,
    )
)
def test_whatever_engines_report_one_wakes_at_a_time_and_none_more_often_than_its_pauses_allow(
    reports: list[tuple[str, str, str, float]],
) -> None:
    pool, now = Pool("a", "b", "c"), 0.0
    failures: dict[str, tuple[int, float]] = {}
    for name, state, why, passed in reports:
        now += passed
        pool.set(name, state, why, now)
        due, failed = pool.choose(now)
        assert len(pool.orders.pending) <= 1
        for each in failed:
            count = failures.get(each, (0, 0.0))[0] + 1
            failures[each] = count, now + min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** (count - 1))
        for each in due:
            worker = pool.fleet.find(each)
            assert worker is not None
            assert worker.state == "asleep"
            assert now >= failures.get(each, (0, 0.0))[1]


@pytest.mark.parametrize(
    ("states", "off", "on"),
    [
        ([], (0, 0), (0, 0)),
        (["serving", "asleep"], (1, 1), (1, 1)),
        (["asleep", "asleep"], (0, 2), (0, 2)),
        (["draining", "asleep"], (0, 1), (0, 1)),
        (["draining"], (1, 0), (1, 0)),  # as before: it leaves, and none comes for it
        (["not_ready", "asleep"], (1, 1), (0, 1)),
        (["unreachable", "asleep"], (1, 1), (0, 1)),
        (["not_ready", "unreachable"], (2, 0), (2, 0)),
    ],
    ids=str,
)
def test_engines_that_may_get_requests_are_counted(
    states: list[str], off: tuple[int, int], on: tuple[int, int]
) -> None:
    pool = Pool(*[f"w{number}" for number in range(len(states))])
    for number, state in enumerate(states):
        pool.set(f"w{number}", state)
    pool.fleet.refresh(0.0)
    assert count_endpoints(pool.fleet, 0.0, waking=False) == off
    assert count_endpoints(pool.fleet, 0.0, waking=True) == on


@pytest.mark.parametrize("prefill", ["serving", "asleep", "not_ready"])
def test_engines_that_only_compute_prompts_answer_no_request_and_are_not_woken(prefill: str) -> None:
    pool = Pool()
    for name, role, state in (("a-prefill", "prefill", prefill), ("b-decode", "decode", "asleep")):
        pool.start(name, role=role)
        pool.set(name, state)
    assert count_endpoints(pool.fleet, 0.0, waking=True) == (0, 1)
    assert count_endpoints(pool.fleet, 0.0, waking=False) == (0, 1)
    assert pool.choose(0.0) == (["b-decode"], [])
    pool.set("b-decode", "serving")
    assert count_endpoints(pool.fleet, 0.0, waking=True)[0] > 0


def test_an_engine_of_an_unknown_role_is_woken() -> None:
    pool = Pool()
    pool.start("a", role="something-new")
    pool.set("a", "asleep")
    assert count_endpoints(pool.fleet, 0.0, waking=True) == (0, 1)
    assert pool.choose(0.0) == (["a"], [])
