"""External providers, as the forwarder sees them: who they are at a revision, and asking one."""

import time
from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import BodyEdit, Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.refusal import Refusal
from pointsman_edge.domain.exchange import Exchange
from pointsman_edge.domain.policy import EdgePolicy
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_frontend.adapters.provider_client import ProviderAnswer, ProviderClient, ProviderFailed
from pointsman_frontend.adapters.provider_credentials import Credentials
from pointsman_providers.exchange import Question
from pointsman_providers.resolve import Resolved, resolve

UNSUPPORTED: Final = "unsupported"
"""Outcome of an attempt at a provider that has no word for a field of the request."""
_REMEMBERED: Final = 8


ENGINE_ONLY: Final = frozenset({"cache_salt"})
"""Fields that preprocessing sets for our engines; a provider has nothing to do with them."""


class Providers:
    """The providers of every revision that a request still keeps to."""

    def __init__(self, credentials: Credentials, client: ProviderClient) -> None:
        self._credentials = credentials
        self._client = client
        self._revisions: dict[int, dict[str, Resolved]] = {}
        self._checked: int | None = None

    def check(self, policy: EdgePolicy) -> None:
        """Say once for each revision which credentials are missing. Called every fraction of a second."""
        if policy.revision != self._checked:
            self._checked = policy.revision
            for provider in self._of(policy).values():
                self._credentials.check(provider)

    async def ask(
        self, policy: EdgePolicy, exchange: Exchange, target: Target, asked: str, body: bytes
    ) -> ProviderAnswer:
        """Have the provider of `target` answer. Raises EndpointFailed."""
        provider = self._of(policy).get(target.provider or "")
        if provider is None:
            raise EndpointFailed("refused", "this revision has no such provider")
        question = Question(exchange.api, body, target.model, asked, exchange.request_id, int(time.time()))
        return await self._client.send(provider, question, policy.engine)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    def _of(self, policy: EdgePolicy) -> dict[str, Resolved]:
        found = self._revisions.get(policy.revision)
        if found is None:
            if len(self._revisions) >= _REMEMBERED:
                del self._revisions[min(self._revisions)]
            found = self._revisions[policy.revision] = resolve(policy.config)
        return found


def outward(edits: Sequence[BodyEdit]) -> list[BodyEdit]:
    """The decision's edits as they are for a provider."""
    return [BodyEdit(field=edit.field, remove=True) if edit.field in ENGINE_ONLY else edit for edit in edits]


def is_external(endpoint: ChosenEndpoint) -> bool:
    """Whether a provider serves here: going there is configured, and no retry at engines of our own."""
    return not endpoint.url


def final(failure: EndpointFailed) -> bool:
    """Whether the request is at fault, so that it isn't sent elsewhere."""
    return isinstance(failure, ProviderFailed) and failure.final


def refusal_of(failure: EndpointFailed | None) -> Refusal | None:
    """What the client gets for a provider that didn't answer; None for other failures."""
    return failure.refusal if isinstance(failure, ProviderFailed) else None


def told(answer: ProviderAnswer | EndpointFailed) -> tuple[int | None, float | None]:
    """What an answer or a refusal said of the provider's limits: unix milliseconds of the pause's end, quota left."""
    if not isinstance(answer, ProviderAnswer | ProviderFailed):
        return None, None
    pause, remaining = answer.limits
    return None if pause is None else round((time.time() + pause) * 1000), remaining
