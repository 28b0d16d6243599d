"""Whether the engines of a model have room for work without a waiting client. Time is an argument."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config

OLD_S: Final = 5.0
"""A snapshot of a pool that is older says nothing."""


class SeenPool(NamedTuple):
    """A pool's state as it was received."""

    snapshot: PoolSnapshot
    at: float


def has_room(config: Config, pools: Mapping[str, SeenPool], model: str, below: float, now: float) -> bool:
    """Whether a line of this model may begin: the saturation of its pool is under `below`, or isn't known.

    A pool whose state is unknown, and a provider, refuse by themselves; `Pace` follows their refusals.
    """
    target = config.find_target(model)
    seen = pools.get(target.pool) if target is not None and target.pool is not None else None
    if seen is None or now - seen.at > OLD_S:
        return True
    return seen.snapshot.saturation < below
