"""What the edge hears on the bus."""

from collections.abc import Container

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery


class Handlers:
    """Keeps the last snapshot of each pool, and answers which requests are open."""

    def __init__(self, pools: dict[str, PoolSnapshot], open_requests: Container[str]) -> None:
        self._pools = pools
        self._open = open_requests

    def snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's state."""
        self._pools[snapshot.pool] = snapshot

    def open_requests(self, query: OpenRequestsQuery) -> OpenRequests:
        """Which of these requests haven't ended."""
        return OpenRequests(request_ids=tuple(each for each in query.request_ids if each in self._open))
