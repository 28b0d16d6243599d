"""The answer of a provider, translated into the client's API as it passes."""

import time
from typing import Final

from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_keys import LEAST_S, is_of_credential, limits_of_all
from pointsman_edge.reviewing.answer_review import AnswerReview
from pointsman_edge.sending.encoded_answer import ENCODINGS, AnswerDecoder, BadEncoding
from pointsman_edge.sending.model_name import chosen_model
from pointsman_edge.sending.queue_time import queue_time
from pointsman_edge.telling.following import begin_answer
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.awaited_answer import AwaitedAnswer
from pointsman_epp_adapter.adapters.duplex_answer import DuplexAnswer
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.provider_request import ProviderRequest
from pointsman_epp_adapter.adapters.reviewed_answer import ReviewedAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, ResponseHead
from pointsman_epp_adapter.domain.envoys_answers import FAILED
from pointsman_epp_adapter.domain.mutation import Header, header_changes
from pointsman_providers.errors import (
    BrokenAnswer,
    answered_error,
    attempt_outcome,
    cut_off,
    explained,
    explained_answer,
    explained_error,
)
from pointsman_providers.exchange import FIRST_BYTES, first_bytes, is_stream
from pointsman_providers.exchange import StreamReader as ProviderStream
from pointsman_providers.limits import ProviderLimits, limits
from pointsman_providers.reported_error import ProviderError

_EVENTS: Final = b"text/event-stream; charset=utf-8"
_JSON: Final = b"application/json"
_BROKEN: Final = "Envoy closed the stream before the response ended: the client left, or the provider broke off"


class ProviderAnswer(AwaitedAnswer):
    """One answer, from the moment at which Envoy learns where to send the request."""

    def __init__(
        self, envoy: EnvoyEdge, record: RequestRecord, mode: BodyMode, sent: ProviderRequest, review: AnswerReview
    ) -> None:
        """`mode`: how Envoy sends answers."""
        super().__init__(envoy, record, mode)
        self._sent = sent
        self._provider = provider = sent.provider
        self._call = sent.call
        self._duplex = mode is BodyMode.FULL_DUPLEX_STREAMED
        self._review = review
        decision = record.decision
        self._model = [] if decision is None else chosen_model(record.policy.prices, decision.target, decision.model)
        self._events: ProviderStream | None = None
        self._pieces: list[bytes] = []
        self._status = 0
        self._answered: int | None = None
        """The status that says how the provider is; None while it hasn't answered, or where it broke off."""
        self._kind = ""
        """The content type that the provider gave its answer."""
        self._named: dict[str, str] = {}
        """The headers of its answer."""
        self._told = ProviderLimits()
        self._decoder: AnswerDecoder | None = None
        """Undoes an encoding that the provider wasn't asked for."""
        self._started = False
        self._failed = ""
        self._sent_at = time.monotonic()
        record.tail = self._tail = record.api.usage()
        record.worker = provider.name

    def close(self) -> None:
        """The stream has ended: record the attempt, and the request's outcome if it has none."""
        record = self._record
        if record.outcome is None:
            record.end("client_gone", self._status, _BROKEN)
        if record.worker is None:
            return
        record.usage = self._call.answer.usage
        if self._reviewed is not None:
            record.bytes_out = self._reviewed.bytes_out
        outcome = self._failed or ("cut_off" if record.outcome == "client_gone" else "answered")
        took_s = time.monotonic() - self._sent_at
        record.record_attempt(self._provider.name, outcome, self._status or None, took_s)
        told = limits_of_all(self._provider, self._told)
        if outcome != "cut_off":
            told = self._envoy.providers.record_answer(self._sent, self._answered, self._told)
        pause = told.retry_after_s
        record.limited(None if pause is None else round((time.time() + pause) * 1000), told.remaining)

    async def _head(self, head: ResponseHead, stream: Stream) -> None:
        named = {name.decode("ascii", "replace"): value.decode("latin-1") for name, value in head.headers}
        status = named.get(":status", "")
        self._status = int(status) if status.isdigit() else 0
        if head.envoys_own and self._status < FAILED:
            await self._refused_by_envoy(head, stream)
            return
        if head.envoys_own:
            outcome, status = ("timeout", 504) if self._status == 504 else ("refused", 502)
            raise self._refused(outcome, explained(self._provider.name, status))
        self._named, self._answered = named, self._status
        self._told = limits(self._status, named, time.time(), self._provider.settings.max_pause)
        if not 200 <= self._status < 300:
            if head.end:
                raise self._refusal(b"")
            if not self._duplex:
                await stream.write(wire.response_head(header_changes([], []), BodyMode.BUFFERED))
            return
        if head.end:
            raise self._broken("the response is empty")
        self._kind = named.get("content-type", "")
        if named.get("content-encoding", "").strip().lower().encode("latin-1") in ENCODINGS:
            self._decoder = AnswerDecoder()
        streamed = is_stream(self._kind, b"")
        self._record.stream = streamed
        if self._record.policy.response_processors:
            failures = self._edge.processor_failures
            self._tail = begin_answer(self._record, failures, self._status, streamed, head.headers)
            self._record.tail = self._tail
        kind = _EVENTS if streamed else b"application/json"
        mode = self._mode
        if not self._duplex:
            mode = BodyMode.STREAMED if streamed and not self._review.needs_all else BodyMode.BUFFERED
        if self._duplex:
            self._way = DuplexAnswer(stream)
        self._reviewed = ReviewedAnswer(
            review=self._review, record=self._record, stream=stream, mode=mode, ended=self._ended, way=self._way
        )
        await self._reviewed.begin_answer(self._status, head.headers, [(b"content-type", kind), *self._own()])

    async def _body(self, piece: Body, stream: Stream) -> None:
        await self._piece(piece.data, stream, last=piece.end, end=piece.end)

    async def _piece(self, data: bytes, stream: Stream, *, last: bool, end: bool) -> None:
        reviewed = self._reviewed
        if reviewed is None:
            self._pieces.append(data)
            if last:
                raise self._refusal(b"".join(self._pieces))
            if not self._duplex:
                await stream.write(wire.response_piece(b""))
            return
        if not self._started:
            self._started = True
            now = self._record.first_byte_at = time.monotonic()
            self._edge.events.publish_start(self._record, self._provider.name, now - self._sent_at)
        try:
            data = self._translated(self._decoded(data), last=last)
        except BrokenAnswer as broken:
            refusal = self._broken(str(broken), broken.error)
            if not await reviewed.fail_stream(self._record.api.error_event(refusal), last=last):
                raise refusal from None
            return
        if not (data or last):
            self._thinking()
        self._tail.follow_bytes(data)
        await reviewed.write_piece(data, last=last, end=end)

    async def _rest(self, stream: Stream) -> None:
        """Trailers have come: pass on the bytes that are held."""
        if self._duplex or self._reviewed is None:
            await self._piece(b"", stream, last=True, end=False)
            return
        try:
            data = self._translated(b"", last=True)
        except BrokenAnswer as broken:
            raise self._broken(str(broken), broken.error) from None
        if data or self._review.blocks:
            raise self._broken(
                "trailers ended a response that was held here; it needs response_body_mode FULL_DUPLEX_STREAMED"
            )
        self._ended()

    def _decoded(self, data: bytes) -> bytes:
        """Raises BrokenAnswer."""
        try:
            return data if self._decoder is None else self._decoder.decode_bytes(data)
        except BadEncoding as bad:
            raise BrokenAnswer(str(bad)) from None

    def _translated(self, data: bytes, *, last: bool) -> bytes:
        """The bytes that the client can have now. Raises BrokenAnswer."""
        reviewed = self._reviewed
        if reviewed is not None and reviewed.withholds:
            return b""
        if self._events is None:
            self._pieces.append(data)
            held = b"".join(self._pieces)
            if self._record.stream and not last and len(first_bytes(held)) < FIRST_BYTES:
                return b""
            if not is_stream(self._kind, held):
                if self._duplex and reviewed is not None and self._record.stream:
                    self._record.stream = False
                    reviewed.change_content_type(_JSON)
                return self._call.answer.translate_whole(held) if last else b""
            if not self._record.stream and not last:
                return b""  # a stream that is labelled as something else passes as a whole
            self._events = self._call.answer.make_stream_reader()
            if reviewed is not None and not self._record.stream:
                self._record.stream = True
                reviewed.change_content_type(_EVENTS)
            self._pieces, data = [], held
        events = self._events
        data = events.translate_bytes(data) + (events.translate_end() if last else b"")
        if events.ended:
            data = self._envoy.providers.conceal_in_end(self._provider, data)
        if not self._duplex:
            return data
        # The head can wait until the answer says something: an error before that is an error with a status.
        self._pieces.append(data)
        if not (events.has_begun or last):
            return b""
        held, self._pieces = b"".join(self._pieces), []
        return held

    def _refusal(self, body: bytes) -> Refusal:
        """The provider's error, in words for the client."""
        self._envoy.providers.record_refusal(self._sent, body)
        error = answered_error(self._status, self._named, body)
        self._answered = error.status
        self._told = limits(error.status, self._named, time.time(), self._provider.settings.max_pause, error)
        refusal = explained_answer(self._provider.name, error, self._told.retry_after_s)
        if refusal.retry_after_s is not None and is_of_credential(self._provider, error.status):
            # The next request goes with another one.
            refusal.retry_after_s = LEAST_S
        self._envoy.providers.conceal_secret(self._provider, refusal)
        return self._refused(attempt_outcome(error.status), refusal)

    def _broken(self, why: str, error: ProviderError | None = None) -> Refusal:
        self._failed = "failed" if error is None else attempt_outcome(error.status)
        self._answered = None if error is None else error.status
        if self._told.retry_after_s is None and error is not None:
            self._told = limits(error.status, self._named, time.time(), self._provider.settings.max_pause, error)
        refusal = cut_off(self._provider.name, error) if self._begun else _no_answer(self._provider.name, error)
        if self._told.retry_after_s is not None and refusal.retry_after_s is not None:
            refusal.retry_after_s = self._told.retry_after_s
        self._envoy.providers.conceal_secret(self._provider, refusal)
        why = self._envoy.providers.conceal_in_words(self._provider, why)
        self._record.end("cut_off", refusal.status, why, refusal.told_code)
        return refusal

    def _may_begin(self) -> bool:
        """Have the head leave before its answer says something, unless it has left."""
        return self._reviewed is not None and self._reviewed.let_head_out()

    @property
    def _begun(self) -> bool:
        return self._events is not None and self._events.has_begun

    def _refused(self, outcome: str, refusal: Refusal) -> Refusal:
        self._failed = outcome
        self._record.record_all_failed(refusal)
        return refusal

    def _own(self) -> list[Header]:
        record = self._record
        return [
            (b"x-request-id", record.request_id.encode("ascii")),
            (b"x-pointsman-level", record.level.encode("ascii", "replace")),
            *self._model,
            *queue_time(record.queued_ms),
        ]

    def _ended(self) -> None:
        self._record.end("ok", self._status)


def _no_answer(provider: str, error: ProviderError | None) -> Refusal:
    return explained(provider, 502) if error is None else explained_error(provider, error)
