"""The answer of an engine."""

import time
from typing import Final

from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_apis.errors import SERVER_ERROR
from pointsman_contracts.reply import Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.answer_review import AnswerReview
from pointsman_edge.sending.encoded_answer import BadEncoding
from pointsman_edge.sending.error_shape import ErrorShape, refusal_of
from pointsman_edge.sending.first_events import InPlaceOfAnswer
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.sending.missing_path import MISSING, MissingPath, is_json
from pointsman_edge.sending.model_name import chosen_model, renaming
from pointsman_edge.sending.moving_on import FAILED, failure_of
from pointsman_edge.sending.packed_vectors import with_packed_vectors
from pointsman_edge.sending.queue_time import queue_time
from pointsman_edge.sending.unasked_usage import without_unasked_usage
from pointsman_edge.taking_in.bodies import asked_choices
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.answer_head import OwnHeaders, passing
from pointsman_epp_adapter.adapters.awaited_answer import AwaitedAnswer
from pointsman_epp_adapter.adapters.duplex_answer import DuplexAnswer
from pointsman_epp_adapter.adapters.engine_attempts import EngineAttempts
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.reviewed_answer import ReviewedAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.answer import BUFFERED, Answer
from pointsman_epp_adapter.domain.destination import Destination
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, ResponseHead
from pointsman_epp_adapter.domain.envoys_answers import FAILED as SERVER_ERRORS
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges, client_headers, header_changes
from pointsman_epp_adapter.domain.opening import Opening, SaidNothing
from pointsman_epp_adapter.domain.prefill_report import prefiller
from pointsman_epp_adapter.domain.protocol_headers import served
from pointsman_providers.errors import CUT_OFF
from pointsman_providers.reported_error import ProviderError

_ERROR: Final = 400
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_JSON: Final = (b"content-type", b"application/json")
_UNSEEN: Final = "the response passed unread; whether it was complete is unknown"
_CUT_SHORT: Final = (
    "trailers ended a response of unknown length that was held here; it needs response_body_mode FULL_DUPLEX_STREAMED"
)
_BROKEN: Final = "Envoy closed the stream before the response ended: the client left, or the engine broke off"


class EngineAnswer(AwaitedAnswer):
    """One answer, from the moment at which Envoy learns where to send the request."""

    def __init__(
        self,
        envoy: EnvoyEdge,
        record: RequestRecord,
        mode: BodyMode,
        decision: Decision,
        chosen: list[Destination],
        asked: str,
        review: AnswerReview | None,
        *,
        counted: bool,
    ) -> None:
        """`chosen`: at least one; `asked`: the model's name for the client; `counted`: streams show usage alone."""
        super().__init__(envoy, record, mode)
        self._asked = asked
        self._asked_choices = asked_choices(record.api.name, record.body, decision)
        name = renaming(decision.target.model, asked)
        self._model = [] if name is None else chosen_model(record.policy.prices, decision.target, asked)
        self._name = with_packed_vectors(record.body, name) if record.api is EMBEDDINGS else name
        self._edits = decision.body
        self._level = decision.level.encode("ascii", "replace")
        self._review = review
        self._counted = counted
        self._prefiller = prefiller(decision.headers)
        self._answer: Answer | None = None
        self._opening: Opening | None = None
        """Holds the beginning of the answer; None once it has said something."""
        self._waiting_head: ResponseHead | None = None
        """The head, in full duplex as long as it is held."""
        self._waiting = b""
        """The end of a document in full duplex: it leaves with Envoy's next message, which says that it is the end."""
        self._told = mode
        """How Envoy sends the body, as set when the answer began."""
        self._seen = mode is not BodyMode.NONE
        """Whether Envoy shows the end of the answer."""
        self._started = False
        self._relabelled: list[Header] = []
        self._further: list[Header] = []
        """Headers of this answer beside those of every one."""
        self._attempts = EngineAttempts(envoy, record, chosen)

    def close(self) -> None:
        """The stream has ended: record the attempt, and the request's outcome if it has none."""
        record, answer, attempts = self._record, self._answer, self._attempts
        attempts.close()
        if answer is None:
            if record.outcome is None:
                # Or the engine broke off: its head may never have left Envoy.
                attempts.record_end(None, cut_off=True)
            return
        if record.outcome is None:
            if self._seen:
                record.end("client_gone", answer.status, _BROKEN)
            else:
                record.first_byte_at = None  # engines send headers before there is a first token
                self._ended(_UNSEEN)
        record.bytes_out = answer.bytes if self._reviewed is None else self._reviewed.bytes_out
        record.tail = answer.tail
        if record.outcome == "cut_off":
            self._edge.load.record_failure(attempts.worker, time.monotonic())
        broken = record.outcome in ("client_gone", "cut_off")
        if self._started or broken:
            attempts.record_end(answer.status, cut_off=broken)

    async def _head(self, head: ResponseHead, stream: Stream) -> None:
        record = self._record
        if head.envoys_own:
            if head.status >= SERVER_ERRORS:
                raise self._attempts.record_unanswered(head.status)
            # The answer of a filter or a route passes unchanged.
            await self._refused_by_envoy(head, stream)
            return
        answer = self._answer = Answer(head.headers, record.api, self._name, self._asked_choices)
        self._attempts.tell_served(head.served)
        self._attempts.begin_answer(answer, head.headers)
        if self._prefiller and self._attempts.take_leg(self._prefiller, head):
            record.level, self._level = "degraded", b"degraded"
        self._attempts.judge_status(answer.status)
        if self._envoy.settings.conformance_headers:
            self._further = [served(head)]
        if head.end or self._mode is not BodyMode.FULL_DUPLEX_STREAMED:
            await self._begin(head, answer, stream)
            return
        self._way = DuplexAnswer(stream)
        if answer.status >= _ERROR or (record.api.passed and not answer.stream and not is_json(head.headers)):
            self._begin_duplex(head, answer, self._way)
        else:
            self._opening, self._waiting_head = Opening(answer, record.api), head

    async def _begin(self, head: ResponseHead, answer: Answer, stream: Stream) -> None:
        self._prepare(head, answer)
        mode = None if head.end else self._wanted(answer)
        self._told = self._mode if mode is None else mode
        if head.end or not self._seen:
            self._first_byte()
        if self._told is BodyMode.BUFFERED and answer.status < _ERROR:
            self._opening = Opening(answer, self._record.api)
        review = self._review
        if review is None:
            if head.end:
                self._ended()
            gone = self._gone(answer)
            await stream.write(passing(head.headers, self._own_headers(), self._record.answer_headers, mode, gone))
            return
        headers = self._for_review(head, answer, review)
        if review.blocks and not head.end:
            self._reviewed = ReviewedAnswer(
                review=review, record=self._record, stream=stream, mode=self._told, ended=self._ended, way=None
            )
            await self._reviewed.begin_answer(answer.status, head.headers, headers)
            return
        review.begin(answer.status, headers)
        if review.blocks:
            headers, _ = await review.whole(answer.status, headers, b"")
        if head.end:
            self._ended()
        headers = edited_answer_headers(headers, self._record.answer_headers)
        await stream.write(wire.response_head(header_changes(head.headers, headers), mode))

    def _begin_duplex(self, head: ResponseHead, answer: Answer, way: DuplexAnswer) -> None:
        """Let the head leave with the next bytes, or have it wait for the stages."""
        self._prepare(head, answer)
        review = self._review
        if review is None:
            edits = self._record.answer_headers
            way.begin_answer(passing(head.headers, self._own_headers(), edits, None, self._gone(answer)))
            return
        headers = self._for_review(head, answer, review)
        if review.blocks:
            self._reviewed = ReviewedAnswer(
                review=review, record=self._record, stream=way.stream, mode=self._mode, ended=self._ended, way=way
            )
            self._reviewed.expect_answer(answer.status, head.headers, headers)
            return
        review.begin(answer.status, headers)
        headers = edited_answer_headers(headers, self._record.answer_headers)
        way.begin_answer(wire.response_head(header_changes(head.headers, headers), None))

    def _prepare(self, head: ResponseHead, answer: Answer) -> None:
        """The answer's kind is known, or taken from its label."""
        record = self._record
        self._further += [*(answer.pause or ()), *queue_time(record.queued_ms)]
        if record.stream is not answer.stream:
            self._further.append(_EVENTS if answer.stream else _JSON)
        record.stream = answer.stream
        if answer.stream:
            answer.rewriting = without_unasked_usage(self._edits, self._name)
        elif answer.status >= _ERROR and not head.end:
            labelled = is_json(head.headers)
            if not labelled:
                self._further.append(_JSON)
            answer.rewriting = ErrorShape(answer.status, record.api, self._name)
            if answer.status in MISSING:
                inner, anyway = answer.rewriting, not labelled
                answer.rewriting = MissingPath(answer.status, record.api, self._asked, inner, anyway=anyway)

    def _for_review(self, head: ResponseHead, answer: Answer, review: AnswerReview) -> list[Header]:
        gone = [*self._gone(answer), *(["content-length"] if review.blocks and not head.end else ())]
        without = {name.encode("ascii") for name in gone}
        kept = [each for each in head.headers if each[0] not in without]
        return client_headers(kept, self._own(), changed=False)

    def _gone(self, answer: Answer) -> tuple[str, ...]:
        return answer.hidden_headers(seen=self._seen)

    async def _body(self, piece: Body, stream: Stream) -> None:
        answer = self._answer
        if answer is None:
            return
        self._seen = True
        # A whole body that has trailers isn't marked as the last piece.
        last = piece.end or (self._told is BodyMode.BUFFERED and answer.whole_with(piece.data))
        data = self._decoded(answer, piece.data)
        if self._opening is not None:
            found = self._opened(self._opening, answer, data, last=last or self._told is BodyMode.BUFFERED)
            if found is None:
                self._thinking()
                return
            data = found
        if not self._started:
            self._first_byte()
        data = answer.feed(data, end=last)
        if answer.cut_off:
            await self._cut_off(answer, data, stream, end=piece.end)
        elif self._reviewed is not None:
            await self._reviewed.write_piece(data, last=last, end=piece.end)
        else:
            await self._out(answer, data, piece, stream, last=last)

    async def _out(self, answer: Answer, data: bytes, piece: Body, stream: Stream, *, last: bool) -> None:
        if self._review is not None:
            self._review.note_sent_bytes(data)
        if last:
            self._ended()
        if self._way is not None:
            data = self._waiting + data
            if answer.is_whole and not piece.end:
                self._waiting = data
            elif data or piece.end:
                self._waiting = b""
                await self._way.write(data, end=piece.end)
        elif self._relabelled:
            await stream.write(wire.response_piece(data, HeaderChanges(self._relabelled, [])))
        elif data is piece.data:
            await stream.write(CONTINUE["response_body"])
        else:
            await stream.write(wire.response_piece(data))

    def _opened(self, opening: Opening, answer: Answer, data: bytes, *, last: bool) -> bytes | None:
        """The bytes that go on, once the head does; None while both are held. Raises Refusal for an error in place of
        the answer, whose head hasn't left."""
        try:
            found = opening.feed(data, last=last)
        except InPlaceOfAnswer as failed:
            raise self._in_place(failed.error) from None
        except SaidNothing:
            raise self._in_place(None) from None
        if found is not None:
            self._opening = None
            head, self._waiting_head = self._waiting_head, None
            if head is not None and self._way is not None:
                self._begin_duplex(head, answer, self._way)
            elif self._told is BodyMode.BUFFERED and answer.stream is not self._record.stream:
                self._relabel(answer)
        return found

    def _relabel(self, answer: Answer) -> None:
        """The buffered body isn't what its head says, which Envoy still holds."""
        label = _EVENTS if answer.stream else _JSON
        self._record.stream = answer.stream
        answer.rewriting = without_unasked_usage(self._edits, self._name) if answer.stream else self._name
        self._relabelled.append(label)
        if self._reviewed is not None:
            self._reviewed.change_content_type(label[1])

    def _may_begin(self) -> bool:
        """Have the head leave before its answer says something, unless it has left."""
        opening, head, answer = self._opening, self._waiting_head, self._answer
        if opening is not None and head is not None and answer is not None and self._way is not None:
            opening.given_up = True
            self._waiting_head = None
            self._begin_duplex(head, answer, self._way)
        return self._reviewed is None or self._reviewed.let_head_out()

    def _decoded(self, answer: Answer, data: bytes) -> bytes:
        try:
            return answer.decode_next(data)
        except BadEncoding as bad:
            refusal = self._incomplete()
            self._record.end("cut_off", refusal.status, str(bad), CUT_OFF)
            raise refusal from None

    async def _cut_off(self, answer: Answer, data: bytes, stream: Stream, *, end: bool) -> None:
        """End a stream whose last bytes `data` are, in the words of its API. Raises Refusal while none of it has
        left."""
        refusal, reviewed, way = self._incomplete(), self._reviewed, self._way
        self._record.end("cut_off", answer.status, "the stream ended early", CUT_OFF)
        event = self._record.api.error_event(refusal)
        if reviewed is not None:
            if way is not None and data:
                await reviewed.write_piece(data, last=False, end=False)
            if not await reviewed.fail_stream(event, last=end):
                raise refusal
        elif way is not None:
            await way.write(data + event, end=end)
        else:
            await stream.write(wire.response_piece(data + event))

    def _incomplete(self) -> Refusal:
        message = f"The engine stopped before its answer was complete; request id {self._record.request_id}."
        return Refusal(502, message, type=SERVER_ERROR, code=CUT_OFF)

    def _in_place(self, error: ProviderError | None) -> Refusal:
        """The client's error where the engine sent an error, or nothing, with status 200. Envoy asks no other endpoint
        any more: it has an answer."""
        refusal = self._incomplete() if error is None else refusal_of(error)
        self._attempts.record_failure(FAILED if error is None else failure_of(error.status) or FAILED, refusal.status)
        ended = "ok" if refusal.status < SERVER_ERRORS else "engine_error"
        self._record.end(ended, refusal.status, refusal.detail, refusal.told_code)
        return refusal

    async def _rest(self, stream: Stream) -> None:
        """Trailers have come: pass on the bytes that are held."""
        answer, way = self._answer, self._way
        if answer is not None:
            data = b""
            if self._opening is not None and way is not None:
                data = self._opened(self._opening, answer, b"", last=True) or b""
            data = answer.feed(data, end=True)
            if answer.cut_off and way is not None:
                await self._cut_off(answer, data, stream, end=False)
            elif way is None:
                if data or self._reviewed is not None:
                    message = "The engine's response ended with trailers, which this proxy can't forward."
                    self._record.end("engine_error", 502, _CUT_SHORT)
                    raise Refusal(502, message, type=SERVER_ERROR, code="engine_failed")
            elif self._reviewed is not None:
                await self._reviewed.write_piece(data, last=True, end=False)
            elif data := self._waiting + data:
                await way.write(data, end=False)
        self._ended()

    def _wanted(self, answer: Answer) -> BodyMode | None:
        """How Envoy is to send the body; None: as configured. NONE if no part of the edge needs the body."""
        review = self._review
        if self._mode is BodyMode.FULL_DUPLEX_STREAMED:
            return None  # Envoy doesn't change it then
        if review is not None and review.blocks:
            wanted = BodyMode.STREAMED if answer.stream and not review.needs_all else BodyMode.BUFFERED
        elif (
            answer.stream
            and answer.rewriting is None
            and not (self._counted or answer.is_encoded)
            and not (review is not None and review.keeps)
        ):
            wanted = BodyMode.NONE
        elif answer.stream or answer.length is None or answer.length > BUFFERED:
            wanted = BodyMode.STREAMED
        else:
            wanted = BodyMode.BUFFERED
        if wanted is BodyMode.NONE:
            self._seen = False
        return None if wanted is self._mode else wanted

    def _own_headers(self) -> OwnHeaders:
        return OwnHeaders(self._record.request_id.encode("ascii"), self._level, self._model, self._further)

    def _own(self) -> list[Header]:
        """The gateway's own headers in the answer."""
        return self._own_headers().list_headers()

    def _first_byte(self) -> None:
        self._started = True
        now = self._record.first_byte_at = time.monotonic()
        if self._record.stream:
            self._edge.events.publish_start(self._record, self._attempts.worker, now - self._attempts.sent_at)

    def _ended(self, reason: str = "") -> None:
        answer = self._answer
        status = answer.status if answer else 0
        if answer is not None and answer.error is not None:
            kind = answer.error.kind
            self._record.end("cut_off", status, f"the stream ended with an error: {kind or answer.error.status}", kind)
            return
        self._record.end("ok" if status < 500 else "engine_error", status, reason)
