"""Ends the attempts of background requests that give way to others, so that they are decided again."""

from collections.abc import Callable, Collection
from typing import Final

from pointsman_edge.sending.moving_on import PREEMPTED
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.outgoing import Outgoing


class BackgroundRequests:
    """Those of one edge."""

    def __init__(self, engines: EngineClient, find_outgoing: Callable[[str], Outgoing | None]) -> None:
        """`find_outgoing`: the request of this id on its way to engines."""
        self._engines: Final = engines
        self._find_outgoing: Final = find_outgoing

    def give_way(self, worker: str, request_ids: Collection[str], reason: str) -> list[str]:
        """End these requests' attempts at the worker, except where a part of the answer has left or all of it is here.
        Returns the ids of those that were ended."""
        left: list[str] = []
        for connection, call in self._engines.find_calls(worker):
            if call.request_id not in request_ids or connection.is_over:
                continue
            request = self._find_outgoing(call.request_id)
            if request is not None and not request.client.started:
                connection.abandon_attempt(reason, PREEMPTED)
                left.append(call.request_id)
        return left
