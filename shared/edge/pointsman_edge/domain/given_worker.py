"""A worker that a trusted proxy has chosen itself, while the edge decides alone."""

from collections.abc import Mapping
from typing import Final

from pointsman_contracts.pool import PoolSnapshot

NAMES: Final = ("x-gateway-worker-id", "x-dynamo-worker-instance-id", "x-worker-instance-id")
"""Headers that name it; untrusted ones are gone before."""


def given_worker(headers: Mapping[str, str]) -> str | None:
    """Its name; None: the choice is the gateway's."""
    return next((headers[name] for name in NAMES if headers.get(name)), None)


def only(pools: Mapping[str, PoolSnapshot], worker: str) -> dict[str, PoolSnapshot]:
    """The pools without the other workers."""
    return {
        name: snapshot.model_copy(update={"workers": tuple(view for view in snapshot.workers if view.worker == worker)})
        for name, snapshot in pools.items()
    }
