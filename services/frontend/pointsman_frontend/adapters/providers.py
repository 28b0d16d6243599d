"""External providers, as the forwarder sees them: who they are at a revision, and asking one."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_keys import is_of_credential
from pointsman_edge.sending.provider_book import OMIT_HINT, ProviderBook, ProviderRequestParts
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_frontend.adapters.provider_client import ProviderAnswer, ProviderClient, ProviderFailed
from pointsman_providers.errors import NO_CREDENTIAL, NOT_SENT
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.limits import ProviderLimits
from pointsman_providers.resolve import Resolved
from pointsman_runtime.telling.logs import Log

UNSUPPORTED: Final = "unsupported"
"""Outcome of an attempt at a provider that doesn't support a field of the request."""
_AGAIN: Final = "asked again without what another model or the gateway put in"

_log = Log("providers")


class _Sending(NamedTuple):
    """One request to a provider, with the credential that was chosen for it."""

    provider: Resolved
    asking: ProviderRequestParts
    question: ProviderQuestion
    call: ProviderCall


class Providers:
    """Asks the providers of every revision that a request still keeps to."""

    def __init__(self, book: ProviderBook, client: ProviderClient) -> None:
        self._book = book
        self._client = client

    async def ask_provider(
        self, record: RequestRecord, asking: ProviderRequestParts, thinking: Callable[[], None]
    ) -> ProviderAnswer:
        """Have the provider answer, unless it asked for a pause or failed lately; with another of its credentials where
        it refuses one. `thinking` as in `ProviderAnswer.begin`. Raises EndpointFailed."""
        target = asking.target
        provider = self._book.find_provider(record.policy, target.provider)
        if provider is None:
            raise EndpointFailed("refused", "this revision of the configuration doesn't have the provider")
        asking = asking.with_cache_key(provider)
        question = self._book.build_question(provider, asking)
        try:
            call = provider.format.translate_request(question)
        except Refusal as refused:
            # Also during a pause: the request must change, not wait.
            raise ProviderFailed(UNSUPPORTED, refused.message, refused) from None
        refusal = self._book.pauses.refusal_for(provider.name, target.model, time.monotonic())
        if refusal is not None:
            raise _skipped(refusal, ProviderLimits())
        while True:
            try:
                provider = self._book.choose_key(provider, asking)
            except Refusal as refused:
                raise _skipped(refused, ProviderLimits(refused.retry_after_s)) from None
            sent_at = time.monotonic()
            try:
                answer = await self._send(record, _Sending(provider, asking, question, call), thinking)
            except ProviderFailed as failure:
                self._book.conceal_secret(provider, failure.refusal)
                failure.detail = self._book.conceal_in_words(provider, failure.detail)
                status = 401 if failure.refusal.code == NO_CREDENTIAL else failure.status
                goes_on = is_of_credential(provider, status)
                if goes_on or failure.refusal.code not in NOT_SENT:
                    failure.limits = self._book.record_answer(provider, target.model, status, failure.limits)
                if not goes_on:
                    raise
                took_s, reason = time.monotonic() - sent_at, f"{failure.detail}, with {provider.credential}"
                record.record_attempt(provider.name, failure.outcome, failure.status, took_s, reason=reason)
                continue
            answer.limits = self._book.record_answer(provider, target.model, answer.status, answer.limits)
            return answer

    async def _send(self, record: RequestRecord, sending: "_Sending", thinking: Callable[[], None]) -> ProviderAnswer:
        """Have the provider answer; once more without a field or a history that it refuses. Raises ProviderFailed."""
        provider, asking, question, call = sending
        model, within = asking.target.model, record.policy.engine
        sent_at = time.monotonic()
        try:
            answer = await self._client.send_call(provider, call, within, thinking)
        except ProviderFailed as failure:
            second = self._book.second_try(provider, asking, question, failure.status, failure.error)
            if second is None:
                raise
            took_s, reason = time.monotonic() - sent_at, f"{failure.detail}; {_AGAIN}"
            record.record_attempt(provider.name, failure.outcome, failure.status, took_s, reason=reason)
            answer = await self._client.send_call(
                provider, provider.format.translate_request(second.question), within, thinking
            )
            self._learn_fields(provider, model, second.fields)
            return answer
        self._book.added.record_acceptance(provider, model, asking.edits)
        return answer

    def record_end(self, target: Target, answer: ProviderAnswer) -> None:
        """An answer that had begun has ended; if neither whole nor cut off, its client has left."""
        if answer.cut_off or answer.complete:
            self._book.pauses.record_end(
                target.provider or "", target.model, cut_off=answer.cut_off, now=time.monotonic()
            )

    def _learn_fields(self, provider: Resolved, model: str, fields: Sequence[str]) -> None:
        """The provider answered once these fields were gone."""
        if fields:
            self._book.added.record_refusal(provider, model, fields, time.monotonic())
            _log.warning(
                "provider_refuses_field", provider=provider.name, model=model, fields=", ".join(fields), hint=OMIT_HINT
            )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()


def _skipped(refusal: Refusal, told: ProviderLimits) -> ProviderFailed:
    """The failure of a request that isn't sent because the provider, or each of its credentials, pauses."""
    outcome = "limited" if refusal.status == 429 else "refused"
    return ProviderFailed(outcome, "skipped: it asked for a pause, or failed recently", refusal, told=told)


def is_external(endpoint: ChosenEndpoint) -> bool:
    """Whether a provider serves this endpoint: trying one is configured and doesn't count as a retry."""
    return not endpoint.url


def final(failure: EndpointFailed) -> bool:
    """Whether the request is at fault, so that it isn't sent elsewhere."""
    return isinstance(failure, ProviderFailed) and failure.is_final


def refusal_of(failure: EndpointFailed | None) -> Refusal | None:
    """The client's error for a provider that didn't answer; None for other failures."""
    return failure.refusal if isinstance(failure, ProviderFailed) else None


def told(answer: ProviderAnswer | EndpointFailed) -> tuple[int | None, float | None]:
    """The provider's limits by an answer or a failure: the pause's end in unix milliseconds, and the quota left."""
    if not isinstance(answer, ProviderAnswer | ProviderFailed):
        return None, None
    pause, remaining = answer.limits
    return None if pause is None else round((time.time() + pause) * 1000), remaining
