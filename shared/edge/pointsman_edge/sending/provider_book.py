"""The external providers of each revision, and URL and headers of a request to one."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from pointsman_contracts.journey import BodyEdit, Target
from pointsman_core.config import Config
from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_credentials import CredentialMissing, Credentials
from pointsman_edge.credentials.provider_keys import ProviderKeys, is_of_credential, limits_of_all
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.sending.added_fields import AddedFields, named_hints, removals
from pointsman_edge.sending.cache_key import add_key
from pointsman_edge.sending.provider_pauses import ProviderPauses
from pointsman_edge.taking_in.bodies import edited_body
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.limits import ProviderLimits
from pointsman_providers.resolve import Resolved, resolve

_REMEMBERED: Final = 8
_LISTS: Final = ("anthropic-beta", "openai-beta")
"""Headers that list features: the operator's and the client's add up."""
_CLIENTS: Final = frozenset({400, 422})
"""Statuses of answers that may be about a field."""
OMIT_HINT: Final = "name the fields in `omit_added` of the provider, so that no request has them first"
_ONCE: Final = "idempotency-key"
_HIDDEN: Final = "***"
_SHORTEST_SECRET: Final = 8
"""Characters of a credential that isn't a word."""


class ProviderRequestParts(NamedTuple):
    """A decided request, before it becomes one for a provider."""

    api: str
    body: bytes
    """As the stages left it, before the decision's own edits."""
    request_id: str
    target: Target
    asked: str
    """The model's name for the client."""
    answers: int
    """Those that the decision says are asked for."""
    edits: Sequence[BodyEdit]
    """The decision's edits."""
    headers: Sequence[tuple[bytes, bytes]]
    """The client's, as stages changed them."""
    query: bytes
    """The client's, without a question mark."""
    traceparent: str | None
    session_key: str
    """As of `cache_key.session_key`."""

    def with_cache_key(self, provider: Resolved) -> Self:
        """With the key of its session where the provider takes one."""
        if self.api not in provider.keyed_apis:
            return self
        return self._replace(edits=add_key(self.edits, self.session_key, self.body))


class SecondTry(NamedTuple):
    """A request that is sent once more, changed."""

    question: ProviderQuestion
    fields: Sequence[str]
    """Those that the provider takes no more if it answers now."""


class ProviderBook:
    """The providers of every revision that a request still keeps to."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._revisions: dict[int, tuple[Config, dict[str, Resolved]]] = {}
        self._checked: Config | None = None
        self.pauses: Final = ProviderPauses()
        """Which of them aren't asked for a while."""
        self.added: Final = AddedFields()
        self.keys: Final = ProviderKeys()

    def log_missing(self, policy: EdgePolicy) -> None:
        """Log the missing credentials of each revision once. Called several times a second."""
        if policy.config is not self._checked:
            self._checked = policy.config
            for provider in self._of(policy).values():
                self._credentials.log_missing(provider)

    def find_provider(self, policy: EdgePolicy, name: str | None) -> Resolved | None:
        """The provider of this name; None: the revision has none."""
        return self._of(policy).get(name or "")

    def build_question(self, provider: Resolved, asking: ProviderRequestParts) -> ProviderQuestion:
        target = asking.target
        body = edited_body(asking.body, outward(self._kept(provider, asking)), target.model)
        sent = provider.client.parts_of(asking.headers, asking.query, asking.traceparent)
        return ProviderQuestion(
            api=asking.api,
            body=body,
            model=target.model,
            asked=asking.asked,
            request_id=asking.request_id,
            now_s=int(time.time()),
            answers=asking.answers,
            sent=sent,
        )

    def second_try(
        self,
        provider: Resolved,
        asking: ProviderRequestParts,
        question: ProviderQuestion,
        status: int | None,
        error: bytes,
    ) -> SecondTry | None:
        """The request for a provider that refused it for a reason that isn't the client's: a field that the gateway
        added, a hint of the client's that other services take, or a history that another model made. None: no such
        reason is known. `error`: the document."""
        if status not in _CLIENTS:
            return None
        model, edits = asking.target.model, self._kept(provider, asking)
        fields = self.added.suspect_fields(provider, model, edits, error)
        hints = [hint for hint in named_hints(error) if hint not in fields and f'"{hint}"'.encode() in question.body]
        other: ProviderQuestion | None = None
        if fields or hints:
            edits = [edit for edit in edits if not (edit.unasked and edit.field in fields)]
            other = self.build_question(provider, asking._replace(edits=[*edits, *removals(hints)]))
            # A service that takes a field has refused this client's value.
            fields += [hint for hint in hints if not self.added.has_taken(provider, model, hint)]
        if not any(field.encode() in error for field in fields):
            repaired = provider.format.repair_question(other or question, error)
            fields = fields if repaired is None else []
            other = repaired or other
        if other is None:
            return None
        # A service that keeps answers by this key would give the refusal again.
        headers = {name: value for name, value in other.sent.headers.items() if name != _ONCE}
        return SecondTry(other._replace(sent=other.sent._replace(headers=headers)), fields)

    def _kept(self, provider: Resolved, asking: ProviderRequestParts) -> list[BodyEdit]:
        return self.added.keep_accepted(provider, asking.target.model, asking.edits, time.monotonic())

    def choose_key(self, provider: Resolved, asking: ProviderRequestParts) -> Resolved:
        """The provider with the credential for this request. Raises Refusal while all of them pause."""
        sticky = asking.session_key or asking.request_id
        return self.keys.choose_key(provider, asking.target.model, sticky, time.monotonic())

    def record_answer(self, provider: Resolved, model: str, status: int | None, told: ProviderLimits) -> ProviderLimits:
        """Note how a request ended that went with this credential: with this status (as `true_status` reads it), or
        without an answer. Returns what it tells of the provider as a whole."""
        now, told_of_all = time.monotonic(), limits_of_all(provider, told)
        if status is not None and is_of_credential(provider, status):
            pause_s = self.keys.record_refusal(provider, model, status, told.retry_after_s, now)
            if status != 429:
                self._credentials.log_refused(provider, model, status)
            return told_of_all._replace(retry_after_s=pause_s)
        self.pauses.record_answer(provider.name, model, status, told.retry_after_s, now)
        return told_of_all

    def conceal_secret(self, provider: Resolved, refusal: Refusal) -> None:
        """Take the provider's credential out of a refusal in its words: some services repeat a request's headers."""
        secret = self._secret(provider)
        if not secret:
            return
        refusal.message = refusal.message.replace(secret, _HIDDEN)
        refusal.code = refusal.code and refusal.code.replace(secret, _HIDDEN)
        if secret in str(refusal.more):
            refusal.more = None

    def conceal_in_words(self, provider: Resolved, words: str) -> str:
        """Words for operators without the provider's credential: they may name the code of the provider's error."""
        secret = self._secret(provider)
        return words.replace(secret, _HIDDEN) if secret else words

    def conceal_in_end(self, provider: Resolved, events: bytes) -> bytes:
        """The last events of a stream without the provider's credential: they may be an error in its words."""
        secret = self._secret(provider)
        return events.replace(secret.encode(), _HIDDEN.encode()) if secret else events

    def _secret(self, provider: Resolved) -> str:
        """Empty where there is none, or none that can be told from a word."""
        try:
            secret = self._credentials.secret(provider.credential) if provider.credential is not None else ""
        except CredentialMissing:
            return ""
        return secret if len(secret) >= _SHORTEST_SECRET else ""

    async def prepare_call(self, provider: Resolved, call: ProviderCall) -> tuple[str, dict[str, str]]:
        """URL and headers of the POST, the credential among them. Raises CredentialMissing."""
        url = provider.url + call.path
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": "pointsman",
            **call.headers,
        }
        for name, value in provider.settings.headers.items():
            lower = name.lower()
            headers[lower] = f"{value},{headers[lower]}" if lower in _LISTS and lower in headers else value
        await self._credentials.add_credential(provider, url, headers, call.body)
        return url, headers

    def _of(self, policy: EdgePolicy) -> dict[str, Resolved]:
        kept = self._revisions.pop(policy.revision, None)
        # A new bucket counts its revisions from 1 again.
        if kept is None or kept[0] is not policy.config:
            if len(self._revisions) >= _REMEMBERED:
                del self._revisions[next(iter(self._revisions))]
            kept = policy.config, resolve(policy.config)
        self._revisions[policy.revision] = kept
        return kept[1]


ENGINE_ONLY: Final = frozenset({"cache_salt"})
"""Fields that preprocessing sets for our engines; a provider has nothing to do with them."""


def outward(edits: Sequence[BodyEdit]) -> list[BodyEdit]:
    """Without the fields that are meant for the pools' engines."""
    return [BodyEdit(field=edit.field, remove=True) if edit.field in ENGINE_ONLY else edit for edit in edits]
