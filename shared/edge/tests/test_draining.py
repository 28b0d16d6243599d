"""The requests of an engine whose time to drain is over move within the time that is meant for it."""

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.worker import DrainNotice
from pointsman_edge.sending.draining import OVER_S, DrainingEngines, part_to_move

TICK_S = 0.1


def snapshot(left_ms: int | None) -> PoolSnapshot:
    view = WorkerView(worker="w", url="http://w", draining=DrainNotice(left_ms=left_ms, why="upgrade"))
    return PoolSnapshot(pool="p", source="c", sequence=1, at_ms=1, workers=(view,))


def test_snapshots_that_go_on_telling_of_a_drain_do_not_slow_it_down() -> None:
    drains, left, now = DrainingEngines(), 200, 100.0
    drains.take_snapshot(snapshot(0), now)
    for tick in range(round(OVER_S / TICK_S) + 1):
        if tick % 5 == 0:
            drains.take_snapshot(snapshot(0), now)
        (overdue,) = drains.find_overdue(now)
        left -= part_to_move(left, overdue.since_s, TICK_S)
        now += TICK_S
    assert left == 0


def test_a_new_order_with_more_time_puts_the_moves_off() -> None:
    drains = DrainingEngines()
    drains.take_snapshot(snapshot(0), 100.0)
    drains.take_snapshot(snapshot(30_000), 101.0)
    assert not drains.find_overdue(130.9)
    assert drains.find_overdue(131.1)
    drains.take_snapshot(snapshot(None), 132.0)
    assert not drains.find_overdue(1e9)
