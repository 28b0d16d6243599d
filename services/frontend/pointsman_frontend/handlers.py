"""What the edge hears on the bus."""

from collections.abc import Container
from typing import Protocol

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery


class Engines(Protocol):
    """The engines' client, as far as signals concern it."""

    def hangs(self, worker: str, *, certain: bool) -> int:
        """This engine is said not to answer; returns how many attempts were ended."""
        ...


class Handlers:
    """Keeps the last snapshot of each pool, and answers which requests are open."""

    def __init__(self, pools: dict[str, PoolSnapshot], open_requests: Container[str], engines: Engines) -> None:
        self._pools = pools
        self._open = open_requests
        self._engines = engines

    def snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's state; requests that wait for an engine which hangs go elsewhere."""
        self._pools[snapshot.pool] = snapshot
        # When nobody serves it is the signals that are lost rather than every engine.
        if any(view.state == "serving" for view in snapshot.workers):
            for view in snapshot.workers:
                if view.state in ("unreachable", "silent"):
                    self._engines.hangs(view.worker, certain=view.state == "unreachable")

    def open_requests(self, query: OpenRequestsQuery) -> OpenRequests:
        """Which of these requests haven't ended."""
        return OpenRequests(request_ids=tuple(each for each in query.request_ids if each in self._open))
