"""Whether an edge is of any use while the stages can't be asked."""

from collections.abc import Mapping

from pointsman_contracts.pool import PoolSnapshot
from pointsman_edge.deciding.policy import EdgePolicy


def useless_alone(policy: EdgePolicy, pools: Mapping[str, PoolSnapshot], *, providers: bool) -> str | None:
    """Why every request would be refused; None when some are served. `providers`: this edge reaches them."""
    if policy.static.closed is not None:
        return f"not decided alone because {policy.static.closed}"
    config = policy.config
    if any(snapshot.workers for snapshot in pools.values()) or any(pool.engines for pool in config.pools.values()):
        return None
    return None if providers and config.providers else "no engine is known"
