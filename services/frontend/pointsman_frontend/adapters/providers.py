"""External providers, as the forwarder sees them: who they are at a revision, and asking one."""

import time
from collections.abc import Callable
from typing import Final

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_frontend.adapters.provider_client import ProviderAnswer, ProviderClient, ProviderFailed
from pointsman_providers.errors import OPERATORS
from pointsman_providers.exchange import ProviderQuestion

UNSUPPORTED: Final = "unsupported"
"""Outcome of an attempt at a provider that doesn't support a field of the request."""


class Providers:
    """Asks the providers of every revision that a request still keeps to."""

    def __init__(self, book: ProviderBook, client: ProviderClient) -> None:
        self._book = book
        self._client = client

    async def ask(
        self, record: RequestRecord, target: Target, asked: str, body: bytes, thinking: Callable[[], None]
    ) -> ProviderAnswer:
        """Have the provider of `target` answer, unless it asked for a pause or failed lately; `thinking` as in
        `ProviderAnswer.begin`. Raises EndpointFailed."""
        provider = self._book.find(record.policy, target.provider)
        if provider is None:
            raise EndpointFailed("refused", "this revision of the configuration doesn't have the provider")
        question = ProviderQuestion(record.api.name, body, target.model, asked, record.request_id, int(time.time()))
        try:
            call = provider.format.call(question)
        except Refusal as refused:
            # Also during a pause: the request must change, not wait.
            raise ProviderFailed(UNSUPPORTED, refused.message, refused) from None
        pauses = self._book.pauses
        refusal = pauses.refusal(provider.name, target.model, time.monotonic())
        if refusal is not None:
            outcome = "limited" if refusal.status == 429 else "refused"
            raise ProviderFailed(outcome, "skipped: it asked for a pause, or failed recently", refusal)
        try:
            answer = await self._client.send(provider, call, record.policy.engine, thinking)
        except ProviderFailed as failure:
            if failure.refusal.code not in OPERATORS:
                pauses.answered(
                    provider.name, target.model, failure.status, failure.limits.retry_after_s, time.monotonic()
                )
            raise
        pauses.answered(provider.name, target.model, answer.status, None, time.monotonic())
        return answer

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()


def is_external(endpoint: ChosenEndpoint) -> bool:
    """Whether a provider serves this endpoint: trying one is configured and doesn't count as a retry."""
    return not endpoint.url


def final(failure: EndpointFailed) -> bool:
    """Whether the request is at fault, so that it isn't sent elsewhere."""
    return isinstance(failure, ProviderFailed) and failure.final


def refusal_of(failure: EndpointFailed | None) -> Refusal | None:
    """The client's error for a provider that didn't answer; None for other failures."""
    return failure.refusal if isinstance(failure, ProviderFailed) else None


def told(answer: ProviderAnswer | EndpointFailed) -> tuple[int | None, float | None]:
    """The provider's limits by an answer or a failure: the pause's end in unix milliseconds, and the quota left."""
    if not isinstance(answer, ProviderAnswer | ProviderFailed):
        return None, None
    pause, remaining = answer.limits
    return None if pause is None else round((time.time() + pause) * 1000), remaining
