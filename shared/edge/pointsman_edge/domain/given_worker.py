"""A worker that a trusted proxy has chosen itself, while the edge decides alone."""

from collections.abc import Mapping

from pointsman_contracts.pool import PoolSnapshot


def only(pools: Mapping[str, PoolSnapshot], worker: str) -> dict[str, PoolSnapshot]:
    """The pools without the other workers."""
    return {
        name: snapshot.model_copy(update={"workers": tuple(view for view in snapshot.workers if view.worker == worker)})
        for name, snapshot in pools.items()
    }
