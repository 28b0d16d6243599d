"""The models that requests may name."""

from collections.abc import Mapping

from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config


def model_names(config: Config, pools: Mapping[str, PoolSnapshot]) -> list[str]:
    """Configured models first, then the names that are rewritten to them, then models that only engines report."""
    reported = (name for pool, snapshot in pools.items() if pool in config.pools for name in snapshot.models)
    return list(dict.fromkeys((*config.model_names(), *config.aliases(), *reported)))
