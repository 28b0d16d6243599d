"""An engine for a request that names no model."""

from collections.abc import Iterable, Mapping

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.config import Config
from pointsman_edge.deciding.static_choice import (
    ENDPOINTS,
    Eligible,
    EngineState,
    NoEndpoints,
    best_standing,
    endpoint_of,
    outside_subset,
)


def any_engine(
    config: Config,
    pools: Mapping[str, PoolSnapshot],
    engines: EngineState,
    eligible: Eligible,
    model: str | None = None,
) -> tuple[ChosenEndpoint, ...]:
    """The engines of all pools, or those with `model`: the ones that serve, or else all; fewest own attempts first.

    Raises NoEndpoints if none is known.
    """
    found = sorted(
        best_standing(eligible.keep_eligible(_engines(pools.values(), config, model))),
        key=lambda view: (engines.avoided(view.worker), engines.open_on(view.worker), view.running + view.waiting),
    )
    if not found and eligible.subset is not None:
        raise outside_subset()
    if not found:
        raise NoEndpoints("No engine is known; try again shortly.")
    return tuple([endpoint_of(view) for view in found[:ENDPOINTS]])


def _engines(pools: Iterable[PoolSnapshot], config: Config, model: str | None) -> list[WorkerView]:
    return [
        view
        for snapshot in pools
        if snapshot.pool in config.pools
        for view in snapshot.workers
        if view.url and (model is None or not view.models or model in (*view.models, *view.loras))
    ]
