"""Asks the preprocessor who sent a request, by the same means as for a request to a model."""

import itertools
import time
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import orjson

from pointsman_apis.models import MODELS
from pointsman_batch.configuration import BatchPolicy
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.message import JsonValue
from pointsman_contracts.reply import Answer, Rejection
from pointsman_core.config import identifies
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.decider import refusal_of
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_journey.journey_client import JourneyClient
from pointsman_runtime.bus.errors import BusError

PATIENCE_S: Final = 5.0

Header = tuple[bytes, bytes]


class Sender(NamedTuple):
    """Who sent a request."""

    identity: dict[str, JsonValue]
    """The attribute `identity`; empty without authentication."""

    @property
    def owner(self) -> str:
        """The owner of this sender's files and batches: its tenant, or else the subject alone."""
        tenant = str(self.identity.get("tenant") or "")
        return f"tenant:{tenant}" if tenant else f"subject:{self.identity.get('subject') or ''}"


class Asker:
    """Finds out who sends the requests of this process."""

    def __init__(
        self,
        instance: str,
        client: JourneyClient,
        policy: Callable[[], BatchPolicy],
        headers: HeaderRules,
        trusted: TrustedProxies,
    ) -> None:
        self._instance: Final = instance
        self._client: Final = client
        self._policy: Final = policy
        self._headers: Final = headers
        self._trusted: Final = trusted
        self._numbers: Final = itertools.count(1)

    async def identify(self, headers: list[Header], peer: str) -> Sender:
        """The sender of a request with these headers (names in lower case). Raises Refusal as the stages refuse."""
        policy = self._policy()
        if not any(identifies(use) for use in policy.config.preprocessing):
            return Sender({})
        read = self._headers.read(headers, trusted=self._trusted.is_trusted(peer))
        now_ms = time.time_ns() // 1_000_000
        request = PreprocessRequest(
            request_id=f"{self._instance}-{next(self._numbers)}",
            edge=self._instance,
            received_ms=now_ms,
            deadline_ms=now_ms + round(PATIENCE_S * 1000),
            revision=policy.revision,
            method="GET",
            path=MODELS,
            headers=read.stages,
            client=self._trusted.client_of(peer, read.forwarded_for),
        )
        try:
            reply = await self._client.send_request(request, b"", timeout_s=PATIENCE_S)
        except BusError as error:
            raise Refusal(
                503, "The gateway can't check the sender at the moment; try again shortly.", detail=str(error)
            ) from error
        if isinstance(reply, Rejection):
            raise refusal_of(reply)
        found = orjson.loads(reply.body).get("identity") if isinstance(reply, Answer) else None
        if not isinstance(found, dict):
            raise Refusal(503, "The gateway can't check the sender at the moment; try again shortly.")
        return Sender(cast("dict[str, JsonValue]", found))
