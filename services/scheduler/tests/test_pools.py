"""The pools of one scheduler."""

from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools


def test_a_pool_that_is_looked_up_while_it_is_made_is_made_once() -> None:
    made: list[PoolScheduler] = []

    def created(pool: PoolScheduler) -> None:
        made.append(pool)
        assert pools.of("llama") is pool

    pools = Pools("scheduler-1", 2**20, created)
    assert pools.get("llama") is None
    assert [pools.of("llama"), pools.get("llama"), *pools] == made * 3
    assert len(made) == 1
