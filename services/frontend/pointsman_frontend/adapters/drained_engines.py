"""Moves requests off engines whose time to drain is over. A request moves when its answer hasn't begun, when the answer
is sent as a whole, or when another engine may continue its stream. Any other stays until its engine ends."""

import time
from collections.abc import Callable
from typing import Final

from pointsman_edge.edge import TICK_S, Edge
from pointsman_edge.sending.draining import OverdueDrain, part_to_move
from pointsman_edge.sending.moving_on import DRAINED, failed_workers
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.engine_connection import EngineConnection
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.domain.resuming.question import CantContinue
from pointsman_runtime.telling.logs import Log

WHY: Final = "its engine drains"
AGAIN_S: Final = 1.0
"""A request that can't move is looked at again after this time: its thoughts may have ended, or an engine come."""
NO_ENGINE: Final = "no_engine"
NOT_CONTINUED: Final = "not_continued"
"""The reason for begun answers that no other engine can continue: partly sent documents, and streams that can't be
resumed because of the profile's `resume`, the API or the request."""

_log = Log("engines")


class DrainedEngines:
    """Those of one edge."""

    def __init__(self, edge: Edge, engines: EngineClient, find_outgoing: Callable[[str], Outgoing | None]) -> None:
        """`find_outgoing`: the request of this id on its way to engines."""
        self._edge: Final = edge
        self._engines: Final = engines
        self._find_outgoing: Final = find_outgoing
        self._stays: dict[str, float] = {}
        """Requests that couldn't move, by id, and when they are looked at again."""

    def move_off(self, overdue: OverdueDrain) -> None:
        """Move a part of the requests of one engine. Called every `TICK_S`."""
        now = time.monotonic()
        self._stays = {each: at for each, at in self._stays.items() if each in self._edge.open}
        there: list[tuple[EngineConnection, Outgoing]] = []
        for connection, call in self._engines.find_calls(overdue.worker):
            request = self._find_outgoing(call.request_id)
            if request is None or request.record.pool != overdue.pool or connection.is_over:
                continue
            if self._stays.get(call.request_id, 0.0) <= now:
                there.append((connection, request))
        for connection, request in there[: part_to_move(len(there), overdue.since_s, TICK_S)]:
            why = self._move(connection, request, overdue.worker)
            if why is None:
                continue
            request_id = request.record.request_id
            if request_id not in self._stays:
                self._edge.metrics.drain_stays[why] += 1
                _log.warning("request_stays_on_drained_engine", request_id=request_id, worker=overdue.worker, why=why)
            self._stays[request_id] = now + AGAIN_S

    def _move(self, connection: EngineConnection, request: Outgoing, worker: str) -> str | None:
        """Why the request stays; None: it has left."""
        record = request.record
        if record.worker != worker:
            # The leg that computes the prompt: the endpoint that answers does that itself then.
            connection.abandon_attempt(WHY, DRAINED)
            return None
        if (
            self._edge.find_engine(record.pool, request.decision.target, {*failed_workers(record.attempts), worker})
            is None
        ):
            return NO_ENGINE
        answer = "waiting"
        if request.client.started:
            resuming = request.resuming
            if resuming is None:
                return NOT_CONTINUED
            try:
                resuming.break_off()
            except CantContinue as unable:
                return unable.reason
            answer = "stream"
        elif connection.has_begun:
            answer = "whole"
        self._edge.metrics.drain_moves[answer] += 1
        connection.abandon_attempt(WHY, DRAINED)
        return None
