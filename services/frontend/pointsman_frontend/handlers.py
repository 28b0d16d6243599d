"""Handles the pool snapshots that the frontend hears on the bus."""

from typing import Protocol

from pointsman_contracts.pool import PoolSnapshot
from pointsman_edge.edge import Edge


class Engines(Protocol):
    """The engines' HTTP client, as far as signals concern it."""

    def hangs(self, worker: str, *, certain: bool) -> int:
        """End the attempts at an engine that is reported not to answer; returns how many were ended."""
        ...


class Handlers:
    """Keeps the newest snapshot of each pool."""

    def __init__(self, edge: Edge, engines: Engines) -> None:
        self._edge = edge
        self._engines = engines

    def snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's state; requests that wait for an engine which hangs are sent to another one."""
        self._edge.snapshot(snapshot)
        # While no engine serves, the signals are more likely lost than every engine.
        if any(view.state == "serving" for view in snapshot.workers):
            for view in snapshot.workers:
                if view.state in ("unreachable", "silent"):
                    self._engines.hangs(view.worker, certain=view.state == "unreachable")
