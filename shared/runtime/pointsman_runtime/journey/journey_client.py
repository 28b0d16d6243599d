"""How an edge gets a decision: sends a request into the stages, again when no stage answers, and waits.

Every edge uses it. It answers with what the stages said, or raises why there is no answer; it knows nothing of
HTTP.
"""

import asyncio
from typing import Final

from pointsman_contracts.journey import PreprocessRequest
from pointsman_runtime.journey.held_requests import HeldRequests, Place
from pointsman_runtime.journey.hop_budget import HOP_BUDGET_S
from pointsman_runtime.journey.journeys import Journeys
from pointsman_runtime.journey.pending_request import GivesUp, PendingRequest, Settled
from pointsman_runtime.journey.presence import NoInstance
from pointsman_runtime.telling.tallies import Tally


class JourneyClient:
    """Sends requests into the stages of one edge."""

    def __init__(self, journeys: Journeys) -> None:
        self._journeys = journeys
        self.tally: Tally = journeys.bus.new_tally("replies")
        self.held: Final = HeldRequests(self._is_back)
        self.resent = 0
        """Times that a request was sent again because no stage answered."""
        self.abandoned = 0
        """Requests sent again because the instance that had parked them fell silent."""

    async def send(
        self,
        request: PreprocessRequest,
        body: bytes,
        *,
        hop_budget_s: float = HOP_BUDGET_S,
        timeout_s: float = 30.0,
        traceparent: str | None = None,
        gives_up: GivesUp | None = None,
    ) -> Settled:
        """Send a request and wait for its answer, at most `timeout_s` seconds and not past its own deadline.

        An answer must come within `hop_budget_s`, or a word that a stage has parked the request; otherwise it
        is sent again, at growing intervals. While a stage on its way has no live replica, but had one within the last
        `timeout_s` seconds, the request is held, unless `gives_up(stage)`.

        Raises BusDisconnected, BusCongested, PayloadTooLarge, NoListener when there is no preprocessor, and NoReply.
        Cancelling forgets the request; an answer that still comes is counted as late.
        """
        pending = PendingRequest(self, self._journeys, request, body, hop_budget_s, timeout_s, traceparent, gives_up)
        reply = pending.begin()
        if not isinstance(reply, asyncio.Future):
            return reply
        try:
            return await reply
        finally:
            pending.close()

    def waits_for(self, place: Place, within_s: float, now: float) -> bool:
        """Whether a request is held while this stage has no live replica."""
        return self._journeys.heartbeat.table.lately(place.service, place.route, within_s, now)

    def _is_back(self, place: Place, now: float) -> bool:
        where = self._journeys.heartbeat.table.where(place.service, place.route, now)
        return self._journeys.bus.connected and not isinstance(where, NoInstance)
