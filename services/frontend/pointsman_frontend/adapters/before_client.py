"""Puts the stages on the way back before a client."""

from pointsman_contracts.reply import Answer, Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.reviewing.ways_back import WaysBack
from pointsman_edge.telling.exchange import Exchange
from pointsman_frontend.adapters.client import Client
from pointsman_frontend.adapters.leash import Leash
from pointsman_frontend.adapters.reviewed_client import ReviewedClient


class BeforeClient:
    """Who gets answers and errors: the client or, for it, the stages."""

    def __init__(self, ways_back: WaysBack) -> None:
        self._ways_back = ways_back

    def stand(
        self, client: Client, reply: Decision | Answer, policy: EdgePolicy, exchange: Exchange, leash: Leash
    ) -> Client:
        """Who gets the answer: the client or, for it, the stages of the profile and those of every answer."""
        way_back = self._ways_back.begin(reply, policy, exchange, leash)
        if way_back is None:
            return client

        async def refuse(refusal: Refusal) -> None:
            await self.refuse(client, refusal, policy, exchange, leash)

        return ReviewedClient(client, way_back, exchange, refuse)

    async def refuse(
        self, client: Client, refusal: Refusal, policy: EdgePolicy, exchange: Exchange, leash: Leash
    ) -> None:
        """Answer with an error, past the stages of every answer."""
        await client.answer(*await self._ways_back.error(refusal, policy, exchange, leash))
