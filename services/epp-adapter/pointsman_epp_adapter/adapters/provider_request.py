"""The request to a provider: Envoy connects to it, the adapter writes the destination, headers and body."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pointsman_apis.errors import SERVER_ERROR
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_credentials import CredentialMissing
from pointsman_edge.credentials.provider_keys import is_of_credential
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.sending.added_fields import named_hints
from pointsman_edge.sending.cache_key import session_key
from pointsman_edge.sending.header_edits import edited_headers
from pointsman_edge.sending.provider_book import OMIT_HINT, ProviderBook, ProviderRequestParts
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.stream import WholeBody
from pointsman_epp_adapter.domain.envoy_events import BodyMode, RequestHead
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges, stripped
from pointsman_providers.errors import without_credential
from pointsman_providers.exchange import ProviderCall
from pointsman_providers.limits import ProviderLimits
from pointsman_providers.resolve import Resolved
from pointsman_runtime.telling.logs import Log

SCHEME: Final = "provider_scheme"
"""Key of our metadata that Envoy's routes to providers match: `https` or `http`."""

_REFUSED: Final = 300
_OURS: Final = frozenset({b"traceparent", b"x-request-id"})

_log = Log("providers")


class ProviderRequest(NamedTuple):
    """A call, and the provider and model that it is for."""

    provider: Resolved
    model: str
    call: ProviderCall
    edits: Sequence[BodyEdit]
    """The decision's edits, and those of this provider."""


class ProviderRequests:
    """Makes the requests to providers."""

    def __init__(self, book: ProviderBook, *, routed: bool) -> None:
        """`routed`: Envoy has routes to providers."""
        self._book = book
        self._routed = routed

    def log_missing(self, policy: EdgePolicy) -> None:
        """Like `ProviderBook.log_missing`, if Envoy has routes to providers."""
        if self._routed:
            self._book.log_missing(policy)

    def build_request(
        self, record: RequestRecord, decision: Decision, asked: str, head: RequestHead, headers: Sequence[Header]
    ) -> ProviderRequest:
        """The request as the provider gets it. `asked`: the model's name for the client; `headers`: the client's, of
        those that go on. Raises Refusal."""
        mode = head.response_mode
        target = decision.target
        provider = self._book.find_provider(record.policy, target.provider)
        if provider is None or not self._routed or mode is BodyMode.NONE:
            why = (
                "isn't in this revision of the configuration"
                if provider is None
                else "can't be reached through this proxy"
            )
            raise Refusal(
                501,
                f"The model {decision.model!r} is served by the provider '{target.provider}', which {why}.",
                type=SERVER_ERROR,
                code="provider_not_routable",
            )
        asking = ProviderRequestParts(
            api=record.api.name,
            body=record.body,
            request_id=record.request_id,
            target=target,
            asked=asked,
            answers=decision.answers,
            edits=decision.body,
            headers=edited_headers(list(headers), decision.headers),
            query=dict(head.headers).get(b":path", b"").partition(b"?")[2],
            traceparent=record.traceparent,
            session_key=session_key(decision.session, decision.identity),
        ).with_cache_key(provider)
        # A request that must change is refused for that also during a pause.
        call = provider.format.translate_request(self._book.build_question(provider, asking))
        refusal = self._book.pauses.refusal_for(provider.name, target.model, time.monotonic())
        if refusal is not None:
            raise refusal
        return ProviderRequest(self._book.choose_key(provider, asking), target.model, call, asking.edits)

    def record_refusal(self, sent: ProviderRequest, error: bytes) -> None:
        """The provider refused the request by this document. A field that the gateway added, or a client's hint, isn't
        sent to it again where the document names it. Envoy has sent this request, so that it can't be sent once
        more."""
        added = self._book.added
        fields = [edit.field for edit in sent.edits if edit.unasked and edit.field.encode() in error]
        fields += [
            hint
            for hint in named_hints(error)
            if hint not in fields and not added.has_taken(sent.provider, sent.model, hint)
        ]
        if fields:
            added.record_refusal(sent.provider, sent.model, fields, time.monotonic())
            _log.warning(
                "provider_refuses_field",
                provider=sent.provider.name,
                model=sent.model,
                fields=", ".join(fields),
                hint=OMIT_HINT,
            )

    def conceal_secret(self, provider: Resolved, refusal: Refusal) -> None:
        """Like `ProviderBook.conceal_secret`."""
        self._book.conceal_secret(provider, refusal)

    def conceal_in_end(self, provider: Resolved, events: bytes) -> bytes:
        """Like `ProviderBook.conceal_in_end`."""
        return self._book.conceal_in_end(provider, events)

    def conceal_in_words(self, provider: Resolved, words: str) -> str:
        """Like `ProviderBook.conceal_in_words`."""
        return self._book.conceal_in_words(provider, words)

    def record_answer(self, sent: ProviderRequest, status: int | None, told: ProviderLimits) -> ProviderLimits:
        """Like `ProviderBook.record_answer`."""
        if status is not None and status < _REFUSED:
            self._book.added.record_acceptance(sent.provider, sent.model, sent.edits)
        return self._book.record_answer(sent.provider, sent.model, status, told)

    async def build_messages(
        self, record: RequestRecord, sent: ProviderRequest, head: RequestHead, whole: WholeBody
    ) -> list[bytes]:
        """The messages that send it on. Raises Refusal when the credential is missing."""
        provider, call = sent.provider, sent.call
        try:
            url, headers = await self._book.prepare_call(provider, call)
        except CredentialMissing as missing:
            _log.error("provider_credential_missing", provider=provider.name, reason=str(missing))
            if is_of_credential(provider, 401):
                self._book.record_answer(provider, sent.model, 401, ProviderLimits())
            raise without_credential(provider.name) from None
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        changes: list[Header] = [
            (b":authority", parts.netloc.encode("ascii")),
            (b":path", path.encode("ascii")),
            *((name.encode("ascii"), value.encode("utf-8")) for name, value in headers.items() if name != "host"),
            (b"content-length", b"%d" % len(call.body)),
            (b"x-envoy-max-retries", b"0"),
        ]
        stamps = {
            "level": record.level,
            "request_id": record.request_id,
            "worker": provider.name,
            SCHEME: parts.scheme,
        }
        kept = {name for name, _ in changes}
        # Nothing that the client sent is for the provider.
        sent_names = [name for name, _ in head.headers]
        removed = [name for name in stripped(sent_names, ()) if name.encode("ascii", "replace") not in kept]
        removed += [name.decode("ascii") for name, _ in head.headers if name in _OURS - kept]
        return list(
            wire.decided(
                HeaderChanges(changes, removed),
                "",
                stamps,
                buffered_body=whole.buffered,
                body=call.body,
                duplex=not whole.buffered,
                trailers=whole.trailers,
            )
        )
