"""Handles the pool snapshots that the frontend hears on the bus."""

from typing import Protocol

from pointsman_contracts.pool import PoolSnapshot
from pointsman_edge.edge import Edge


class Engines(Protocol):
    """The engines' HTTP client, as far as signals concern it."""

    def leave(self, worker: str, reason: str) -> int:
        """End the attempts at an engine that wait for their first byte; returns how many were ended."""
        ...


class Handlers:
    """Keeps the newest snapshot of each pool."""

    def __init__(self, edge: Edge, engines: Engines) -> None:
        self._edge = edge
        self._engines = engines

    def snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's state. It ends no request: a page that is late, or an agent that is silent, says nothing about the
        answers that are under way."""
        self._edge.snapshot(snapshot)
