"""A frontend beside one worker (S1-29, S1-33): requests go there, and wherever the scheduler says when it can't."""

from typing import Final

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import Rejection
from pointsman_core.given_worker import WORKER, given_worker
from pointsman_edge.deciding.decider import Decider
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.static_choice import Closed
from pointsman_runtime.journey.pending_request import Settled

ELSEWHERE: Final = frozenset({"unknown_worker", "no_endpoints", "saturated"})
"""Codes of rejections after which another worker is asked for."""


class OwnWorker:
    """Decides as `Decider`, for the worker beside this edge first."""

    def __init__(self, decider: Decider, worker: str | None) -> None:
        """`worker` None: there is none, and every request goes where the stages say."""
        self._decider = decider
        self._worker = worker
        self._missed = 0

    def misses(self) -> int:
        """Requests that the worker couldn't take."""
        return self._missed

    async def decide(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Settled:
        """As `Decider.decide`."""
        if self._worker is None or given_worker(request.headers) is not None:
            return await self._decider.decide(request, body, policy, traceparent)
        here = request.model_copy(update={"headers": {**request.headers, WORKER[0]: self._worker}})
        try:
            reply = await self._decider.decide(here, body, policy, traceparent)
        except Closed:
            self._missed += 1
            return await self._decider.decide(request, body, policy, traceparent)
        if not isinstance(reply, Rejection) or reply.code not in ELSEWHERE:
            return reply
        self._missed += 1
        return await self._decider.decide(request, body, policy, traceparent)
