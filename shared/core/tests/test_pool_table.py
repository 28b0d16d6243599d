"""The newest snapshot of each pool is kept, whatever order they arrive in."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.pool_table import PoolTable


class Snapshot(NamedTuple):
    pool: str
    at_ms: int


snapshots = st.lists(st.builds(Snapshot, st.sampled_from(["a", "b"]), st.integers(1, 20)))


@given(snapshots)
def test_each_pool_has_its_newest_snapshot_and_the_later_one_of_two_alike(heard: list[Snapshot]) -> None:
    table = PoolTable[Snapshot, tuple[Snapshot, float]](lambda snapshot, now_s: (snapshot, now_s))
    for second, snapshot in enumerate(heard):
        table.take_snapshot(snapshot, float(second))
    for pool in {snapshot.pool for snapshot in heard}:
        of_pool = [(each.at_ms, second, each) for second, each in enumerate(heard) if each.pool == pool]
        _, second, newest = max(of_pool)
        assert table.views[pool] == (newest, second)


def test_whether_a_snapshot_was_kept_is_known() -> None:
    table = PoolTable[Snapshot, Snapshot](lambda snapshot, _: snapshot)
    assert table.take_snapshot(Snapshot("a", 2), 0.0)
    assert not table.take_snapshot(Snapshot("a", 1), 1.0)
