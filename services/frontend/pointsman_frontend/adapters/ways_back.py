"""Where answers and errors meet the stages on the way back."""

from collections.abc import Sequence

from pointsman_contracts.journey import Stage
from pointsman_contracts.reply import Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.afterwards import Afterwards
from pointsman_edge.domain.error_body import error_body, error_headers
from pointsman_edge.domain.exchange import Exchange
from pointsman_edge.domain.policy import EdgePolicy
from pointsman_edge.domain.reviewing import Surrounding
from pointsman_edge.held_bodies import HeldBodies
from pointsman_edge.reviews import Reviewers
from pointsman_edge.way_back import WayBack, Withheld
from pointsman_frontend.adapters.client import JSON, Client
from pointsman_frontend.adapters.leash import Leash
from pointsman_frontend.adapters.reviewed_client import ReviewedClient


class WaysBack:
    """Sets up the way back of each request. One without stages on it costs nothing."""

    def __init__(self, edge: str, reviewers: Reviewers, bodies: HeldBodies) -> None:
        """`bodies`: of the open requests; one is let go when nothing asks for it any more."""
        self._edge = edge
        self._reviewers = reviewers
        self._bodies = bodies
        self._afterwards = Afterwards()

    def before(
        self, client: Client, decision: Decision, policy: EdgePolicy, exchange: Exchange, leash: Leash
    ) -> Client:
        """Who gets the answer: the client or, for it, the stages of the profile and those of every answer."""
        stages = (*decision.response, *policy.postprocessing)
        if not stages:
            return client
        way_back = leash.way_back = self._begin(stages, policy, exchange, leash)

        async def refuse(refusal: Refusal) -> None:
            await self.refuse(client, refusal, policy, exchange, leash)

        return ReviewedClient(client, way_back, exchange, refuse)

    async def refuse(
        self, client: Client, refusal: Refusal, policy: EdgePolicy, exchange: Exchange, leash: Leash
    ) -> None:
        """Answer with an error, past the stages of every answer (S0-63)."""
        if not policy.postprocessing:
            await client.refuse(refusal)
            return
        way_back = leash.way_back = self._begin(policy.postprocessing, policy, exchange, leash)
        headers = [JSON, *error_headers(refusal)]
        body = error_body(refusal, exchange.api)
        try:
            headers, body = await way_back.whole(refusal.status, headers, body, refusal.code or refusal.type)
        except Withheld as withheld:
            await client.refuse(withheld)
            return
        way_back.left(body)
        await client.answer(refusal.status, headers, body)

    def after(self, policy: EdgePolicy, exchange: Exchange, leash: Leash) -> None:
        """The request has ended: ask the stages that come after the last byte, whatever became of it."""
        if leash.way_back is None and policy.postprocessing:
            leash.way_back = self._begin(policy.postprocessing, policy, exchange, leash)
        held = leash.held
        if leash.way_back is not None:
            self._afterwards.begin(leash.way_back, lambda: None if held is None else self._bodies.let_go(held))
        elif held is not None:
            self._bodies.let_go(held)

    async def drained(self) -> None:
        """Wait until every stage that was asked has answered, or its time is over."""
        await self._afterwards.drain()

    def _begin(self, stages: Sequence[Stage], policy: EdgePolicy, exchange: Exchange, leash: Leash) -> WayBack:
        traceparent = None if leash.span is None else leash.span.traceparent
        return WayBack(stages, self._reviewers, exchange, Surrounding(self._edge, policy.revision, traceparent))
