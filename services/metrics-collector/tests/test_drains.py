"""Orders to drain engines: who is meant, who may be drained, and how long an order holds."""

from typing import Final

import pytest

from pointsman_contracts.draining import DrainOrder, DrainQuery
from pointsman_contracts.pool import WorkerView
from pointsman_contracts.worker import DrainNotice, WorkerRegistration
from pointsman_metrics_collector.domain.drains import (
    MISSED_KEPT_S,
    TOLD_AGAIN_S,
    UNDONE_KEPT_S,
    DrainChanges,
    DrainOrders,
    DrainRefused,
    KnownWorker,
)
from pointsman_metrics_collector.domain.engines import Key

ONE: Final[Key] = ("p", "w1")


def worker(name: str, pool: str = "p", **more: object) -> KnownWorker:
    """A serving engine of one model, at `http://<name>:8000`."""
    fields: dict[str, object] = {"models": ("m",), "boot_id": "b1", "url": f"http://{name}:8000", **more}
    view = {key: fields.pop(key) for key in ("state", "draining", "verdict") if key in fields}
    registration = WorkerRegistration(
        worker=name, pool=pool, agent="a", version="0", registered_ms=0, **fields,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    shown = WorkerView(
        worker=name, url=registration.url, boot_id=registration.boot_id, **view  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    return KnownWorker(registration, shown)


def order(*known: KnownWorker, now: float = 0.0, **query: object) -> tuple[DrainOrders, list[str]]:
    """The orders after one that was carried out, and the workers that it was about."""
    orders = DrainOrders()
    found = orders.take_order(DrainQuery(why="upgrade", **query), known, now)  # pyright: ignore[reportArgumentType]
    return orders, [each.worker for each in found]


def told(orders: DrainOrders, now: float, *known: KnownWorker) -> list[DrainOrder]:
    """The orders for agents at this time."""
    workers = {(each.registration.pool, each.registration.worker): each for each in known}
    return [message for _, message in orders.find_untold(workers, now, workers)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"engine": "http://w1:8000"}, ["w1"]),
        ({"engine": "http://w1:8000/v1"}, ["w1"]),
        ({"engine": "http://w1:8000/"}, ["w1"]),
        ({"engine": "w2"}, ["w2"]),
        ({"host": "w1"}, ["w1"]),
        ({"host": "node-7"}, ["w2", "w3"]),
    ],
)
def test_an_order_names_an_engine_or_a_host(query: dict[str, object], found: list[str]) -> None:
    known = [
        worker("w1"),
        worker("w2", labels={"kubernetes.io/hostname": "node-7"}),
        worker("w3", labels={"host": "node-7"}),
        worker("w4"),
    ]
    assert order(*known, now=0.0, **query)[1] == found  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"engine": "http://w9:8000"}, "no engine http://w9:8000 is known"),
        ({"host": "w9"}, "no engine is known on the host w9"),
        ({"engine": "w1", "pool": "q9"}, "no engine w1 is known in the pool q9"),
        ({}, "no engine"),
        ({"engine": "same"}, "several engines, in the pools p, q"),
        ({"engine": "w1"}, "w1:8000 is the last engine of the pool p that serves m"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(query: dict[str, object], why: str) -> None:
    known = [
        worker("w1"),
        worker("w2", state="unreachable"),
        worker("w3", draining=DrainNotice(), state="draining"),
        worker("w4", verdict="ejected"),
        worker("w5", models=("other",)),
        worker("same", url="http://one:1", models=("x",)),
        worker("same", "q", url="http://two:1"),
    ]
    orders = DrainOrders()
    with pytest.raises(DrainRefused, match=why):
        orders.take_order(DrainQuery(**query), known, 0.0)  # pyright: ignore[reportArgumentType]
    assert orders.ordered_workers() == ()


def test_the_last_engine_is_drained_by_force_and_named_in_the_answer() -> None:
    orders = DrainOrders()
    (found,) = orders.take_order(DrainQuery(engine="w1", force=True), [worker("w1")], 0.0)
    assert (found.warning, found.before) == ("m", "")
    assert orders.find_drain(ONE) is not None


def test_an_engine_of_a_prefill_role_does_not_stand_for_one_that_decodes() -> None:
    with pytest.raises(DrainRefused, match="last engine"):
        order(worker("w1", role="decode"), worker("w2", role="prefill"), engine="w1")
    assert order(worker("w1", role="decode"), worker("w2", role="both"), engine="w1")[1] == ["w1"]


def test_an_agent_is_told_until_it_reports_the_order_and_again_after_it_restarts() -> None:
    one, two = worker("w1"), worker("w2")
    orders, _ = order(one, two, engine="w1", within_ms=30_000)
    assert told(orders, 0.0, one, two) == [DrainOrder(boot_id="b1", left_ms=30_000, why="upgrade")]
    assert told(orders, TOLD_AGAIN_S / 2, one, two) == []
    assert told(orders, TOLD_AGAIN_S, one, two) == [DrainOrder(boot_id="b1", left_ms=29_000, why="upgrade")]
    obeys = worker("w1", state="draining", draining=DrainNotice(left_ms=28_000, why="upgrade"))
    assert told(orders, 2.0, obeys, two) == []
    # A new agent, which knows of nothing; its engine is the same.
    assert [each.left_ms for each in told(orders, 20.0, one, two)] == [10_000]
    # Its time passed while it was away.
    assert [each.left_ms for each in told(orders, 40.0, one, two)] == [0]


def test_an_order_ends_with_the_life_of_its_engine() -> None:
    one, two = worker("w1"), worker("w2")
    orders, _ = order(one, two, engine="w1")
    assert told(orders, 1.0, worker("w1", boot_id="b2"), two) == []
    assert orders.find_drain(ONE) is None


def test_an_engine_that_is_gone_for_a_moment_still_drains_when_it_is_back() -> None:
    one = worker("w1")
    orders, _ = order(one, worker("w2"), engine="w1")
    assert told(orders, 1.0) == []
    assert len(told(orders, MISSED_KEPT_S / 2, one)) == 1
    assert told(orders, 2 * MISSED_KEPT_S) == []
    assert orders.ordered_workers() == ()


def test_the_agent_of_an_engine_with_ranks_is_told_by_the_name_of_the_engine() -> None:
    ranks = [worker(f"w1-rank-{number}", server="w1", rank=number, url="http://w1:8000") for number in range(2)]
    orders, found = order(*ranks, worker("w2"), engine="http://w1:8000")
    assert found == ["w1-rank-0", "w1-rank-1"]
    workers = {(each.registration.pool, each.registration.worker): each for each in ranks}
    assert {key for key, _ in orders.find_untold(workers, 0.0, workers)} == {("p", "w1")}
    assert orders.find_drain(("p", "w1")) is not None


def test_a_second_order_has_the_last_word() -> None:
    one, two = worker("w1"), worker("w2")
    orders, _ = order(one, two, engine="w1", within_ms=60_000)
    drains = worker("w1", state="draining", draining=DrainNotice(left_ms=50_000, why="upgrade"))
    (again,) = orders.take_order(DrainQuery(engine="w1", within_ms=1000, why="hurry"), (drains, two), 10.0)
    assert again.before == "upgrade"
    assert told(orders, 10.0, drains, two) == [DrainOrder(boot_id="b1", left_ms=1000, why="hurry")]


def test_an_order_is_taken_back_once_and_for_all() -> None:
    drains = worker("w1", state="draining", draining=DrainNotice(left_ms=50_000, why="upgrade"))
    orders, _ = order(drains, engine="w1", undo=True)
    assert orders.find_drain(ONE) is None
    assert [each.undo for each in told(orders, 0.0, drains)] == [True]
    assert told(orders, 1.5, worker("w1")) == []
    assert orders.ordered_workers() == ()


def test_an_agent_that_ends_drains_on_whatever_is_ordered() -> None:
    drains = worker("w1", state="draining", draining=DrainNotice(left_ms=50_000, why="its agent ends"))
    orders, _ = order(drains, engine="w1", undo=True)
    assert told(orders, 0.0, drains)
    assert told(orders, UNDONE_KEPT_S + 1, drains) == []
    assert orders.ordered_workers() == ()


def test_a_change_is_published_once() -> None:
    changes = DrainChanges()
    assert not changes.is_new(ONE, None, 0.0)
    assert changes.is_new(ONE, DrainNotice(left_ms=30_000, why="a"), 0.0)
    assert not changes.is_new(ONE, DrainNotice(left_ms=20_100, why="a"), 10.0)
    assert changes.is_new(ONE, DrainNotice(left_ms=5_000, why="a"), 10.0), "another deadline"
    assert changes.is_new(ONE, DrainNotice(left_ms=5_000, why="b"), 10.0), "another reason"
    assert changes.is_new(ONE, DrainNotice(why="b"), 10.0), "no deadline"
    assert changes.is_new(ONE, None, 11.0)
    assert not changes.is_new(ONE, None, 12.0)
