"""The answer of an engine, and which of the endpoints gave it."""

import time
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final

from pointsman_apis.errors import SERVER_ERROR
from pointsman_contracts.reply import Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.answer_review import AnswerReview
from pointsman_edge.sending.error_shape import ErrorShape, error_in_place, refusal_of
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.sending.missing_path import MISSING, MissingPath, is_json
from pointsman_edge.sending.model_name import chosen_model, renaming
from pointsman_edge.sending.moving_on import FAILED, failure_of
from pointsman_edge.sending.unasked_usage import without_unasked_usage
from pointsman_edge.taking_in.request_headers import internal
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.answer_fields import SHORTEST_ID, blank_id
from pointsman_epp_adapter.adapters.awaited_answer import AwaitedAnswer
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.reviewed_answer import ReviewedAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.answer import BUFFERED, Answer
from pointsman_epp_adapter.domain.destination import Destination, served_by
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, ResponseHead
from pointsman_epp_adapter.domain.envoys_answers import FAILED as SERVER_ERRORS
from pointsman_epp_adapter.domain.envoys_answers import unanswered
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges, answered, client_headers, header_changes
from pointsman_epp_adapter.domain.prefill_report import INTENDED, JUDGED, leg_report, prefiller
from pointsman_epp_adapter.domain.protocol_headers import served

_NAME: Final = itemgetter(0)
_OK: Final = 200
_ERROR: Final = 400
_UNSEEN: Final = "the response passed unread; whether it was complete is unknown"
_CUT_SHORT: Final = (
    "trailers ended a response of unknown length that was held here; it needs response_body_mode FULL_DUPLEX_STREAMED"
)
_NO_ANSWER: Final = "no answer, or an error; Envoy doesn't report which"
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
        """`mode`: how Envoy sends answers; `chosen`: at least one; `asked`: the model's name for the client; `counted`:
        Envoy shows streams here for their usage alone, too."""
        super().__init__(envoy, record, mode)
        self._chosen = chosen
        self._asked = asked
        self._name = renaming(decision.target.model, asked)
        self._model = [] if self._name is None else chosen_model(record.policy.prices, decision.target, asked)
        self._edits = decision.body
        self._level = decision.level.encode("ascii", "replace")
        self._review = review
        self._counted = counted
        self._prefiller = prefiller(decision.headers)
        self._answer: Answer | None = None
        self._waiting = b""
        """The end of a document in full duplex: it leaves with Envoy's next message, which says that it is the end."""
        self._told = mode
        """How Envoy sends the body, as set when the answer began."""
        self._seen = mode is not BodyMode.NONE
        """Whether Envoy shows the end of the answer."""
        self._started = False
        self._judged = False
        """The answer is an error, and its attempt is recorded as a failed one."""
        self._tests: list[Header] = []
        """Headers that a conformance test wants in the answer."""
        self._sent_at = time.monotonic()
        self._worker = record.worker = chosen[0].worker
        self._edge.load.began(self._worker)

    def close(self) -> None:
        """As `AwaitedAnswer.close`."""
        record, answer = self._record, self._answer
        self._edge.load.ended(self._worker)
        if answer is None:
            if record.outcome is None:
                # Or the engine broke off: its head may never have left Envoy.
                record.attempted(self._worker, "cut_off", None, self._took())
            return
        if record.outcome is None:
            if self._seen:
                record.end("client_gone", answer.status, _BROKEN)
            else:
                self._ended(_UNSEEN)
        record.bytes_out = answer.bytes if self._reviewed is None else self._reviewed.bytes_out
        record.tail = answer.tail
        broken = record.outcome == "client_gone"
        if (self._started or broken) and not self._judged:
            record.attempted(self._worker, "cut_off" if broken else "answered", answer.status, self._took())

    async def _head(self, head: ResponseHead, stream: Stream) -> None:
        record = self._record
        if head.envoys_own:
            await self._answered_by_envoy(head, stream)
            return
        answer = self._answer = Answer(head.headers, record.api, self._name)
        record.stream = answer.stream
        if answer.stream:
            answer.rewriting = without_unasked_usage(self._edits, self._name)
        elif answer.status >= _ERROR and is_json(head.headers):
            answer.rewriting = ErrorShape(answer.status, record.api, self._name)
            if answer.status in MISSING:
                answer.rewriting = MissingPath(answer.status, record.api, self._asked, answer.rewriting)
        self._tell_served(head.served)
        if self._prefiller:
            self._take_leg(self._prefiller, head)
        self._judge(answer.status)
        if self._envoy.settings.conformance_headers:
            self._tests = [served(head)]
        mode = None if head.end else self._wanted(answer)
        self._told = self._mode if mode is None else mode
        if head.end or not self._seen:
            self._first_byte()
        if self._review is not None:
            await self._begin_review(self._review, head, answer, mode, stream)
            return
        if head.end:
            self._ended()
        await stream.write(self._told_head(head, answer, mode))

    async def _begin_review(
        self, review: AnswerReview, head: ResponseHead, answer: Answer, mode: BodyMode | None, stream: Stream
    ) -> None:
        changed = answer.rewriting is not None or review.blocks
        headers = client_headers(head.headers, self._own(), changed=changed and not head.end)
        if review.blocks and not head.end:
            self._reviewed = ReviewedAnswer(review, self._record, stream, mode or self._mode, self._ended)
            await self._reviewed.begin(answer.status, head.headers, headers)
            return
        review.begin(answer.status, headers)
        if review.blocks:
            headers, _ = await review.whole(answer.status, headers, b"")
        if head.end:
            self._ended()
        headers = edited_answer_headers(headers, self._record.answer_headers)
        await stream.write(wire.response_head(header_changes(head.headers, headers), mode))

    async def _body(self, piece: Body, stream: Stream) -> None:
        answer = self._answer
        if answer is None:
            return
        self._seen = True
        if not self._started:
            self._first_byte()
        duplex = self._mode is BodyMode.FULL_DUPLEX_STREAMED
        # A whole body that has trailers isn't marked as the last piece.
        last = piece.end or (self._told is BodyMode.BUFFERED and answer.whole_with(piece.data))
        if last and self._told is BodyMode.BUFFERED and not answer.bytes and answer.status == _OK:
            self._check(answer, piece.data)
        data = answer.feed(piece.data, end=last)
        if self._reviewed is not None:
            await self._reviewed.piece(data, last=last, end=piece.end)
            return
        if self._review is not None:
            self._review.left(data)
        if last:
            self._ended()
        if duplex:
            data = self._waiting + data
            if answer.is_whole and not piece.end:
                self._waiting = data
            elif data or piece.end:
                self._waiting = b""
                await stream.write_body(data, of_request=False, end=piece.end)
        elif data is piece.data:
            await stream.write(CONTINUE["response_body"])
        else:
            await stream.write(wire.response_piece(data))

    def _check(self, answer: Answer, body: bytes) -> None:
        """Raises Refusal for an error in place of a whole answer: its head hasn't left."""
        error = None if answer.stream else error_in_place(self._record.api, body)
        if error is not None:
            refusal = refusal_of(error)
            self._record.end("engine_error", refusal.status, refusal.detail, refusal.told_code)
            raise refusal

    async def _rest(self, stream: Stream) -> None:
        """As `AwaitedAnswer._rest`."""
        if self._answer is not None:
            data = self._answer.feed(b"", end=True)
            if self._mode is not BodyMode.FULL_DUPLEX_STREAMED:
                if data or self._reviewed is not None:
                    message = "The engine's response ended with trailers, which this proxy can't forward."
                    self._record.end("engine_error", 502, _CUT_SHORT)
                    raise Refusal(502, message, type=SERVER_ERROR, code="engine_failed")
            elif self._reviewed is not None:
                await self._reviewed.piece(data, last=True, end=False)
            elif data := self._waiting + data:
                await stream.write_body(data, of_request=False, end=False)
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
            and not self._counted
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

    def _told_head(self, head: ResponseHead, answer: Answer, mode: BodyMode | None) -> bytes:
        """The message that lets the headers of the answer pass."""
        names, changed = tuple(map(_NAME, head.headers)), answer.rewriting is not None
        request_id, edits = self._record.request_id.encode("ascii"), self._record.answer_headers
        if edits or self._tests or len(request_id) < SHORTEST_ID:
            changes = HeaderChanges(self._own(), _removed(names, changed=changed))
            return wire.response_head(answered(changes, edits, frozenset(names)), mode)
        level = self._level
        return request_id.join(_known(len(request_id), level, tuple(self._model), names, mode, changed=changed))

    def _own(self) -> list[Header]:
        return [*_ours(self._record.request_id.encode("ascii"), self._level, self._model), *self._tests]

    def _first_byte(self) -> None:
        self._started = True
        now = self._record.first_byte_at = time.monotonic()
        if self._record.stream:
            self._edge.events.started(self._record, self._worker, now - self._sent_at)

    def _tell_served(self, address: str) -> None:
        """Record the endpoints before the one that answered as failed: Envoy tries them in order."""
        index = served_by(self._chosen, address)
        if index == 0:
            return
        following = [*self._chosen[1:], None]
        for failed, then in zip(self._chosen[:index], following, strict=False):
            self._failed(failed, then)
        # Beyond the list Envoy chose by itself.
        worker = (self._envoy.worker_at(address) or address) if index is None else self._chosen[index].worker
        self._edge.load.ended(self._worker)
        self._worker = self._record.worker = worker
        self._edge.load.began(worker)

    def _take_leg(self, address: str, head: ResponseHead) -> None:
        """The sidecar's report of the leg that was to compute the prompt."""
        record, edge = self._record, self._edge
        leg = leg_report(head.headers, self._envoy.worker_at(address) or address, record.decided_s)
        if leg is None:
            return
        record.legs = (leg,)
        edge.metrics.prefill_legs[leg.outcome] += 1
        if leg.outcome in INTENDED:
            return
        record.level, self._level = "degraded", b"degraded"
        if leg.outcome in JUDGED:
            edge.events.leg_failed(record, leg, edge.boot_of(record.pool, leg.worker))

    async def _answered_by_envoy(self, head: ResponseHead, stream: Stream) -> None:
        """Raises Refusal if no endpoint answered; the answer of a filter or a route passes unchanged."""
        record = self._record
        if head.status < SERVER_ERRORS:
            await self._refused_by_envoy(head, stream)
            return
        # Envoy doesn't report how many endpoints it tried; its retry policy may allow only two.
        self._failed(self._chosen[0], self._chosen[1] if len(self._chosen) > 1 else None)
        refusal = unanswered(head.status)
        record.end("timeout" if refusal.status == 504 else "engine_error", refusal.status, refusal.message)
        raise refusal

    def _judge(self, status: int) -> None:
        """An error that no other endpoint did better than reaches the client, and counts against its engine. Whether a
        404 is about a model isn't known before its body."""
        outcome = failure_of(status)
        if outcome is not None:
            self._judged = True
            self._record_failure(self._worker, outcome, status, None)

    def _failed(self, failed: Destination, following: Destination | None) -> None:
        self._record_failure(failed.worker, FAILED, None, following)

    def _record_failure(self, worker: str, outcome: str, status: int | None, following: Destination | None) -> None:
        record, edge = self._record, self._edge
        reason = _NO_ANSWER if status is None else f"answered {status}"
        record.attempted(worker, outcome, status, self._took(), reason=reason)
        edge.metrics.failed_attempts[outcome] += 1
        edge.load.failed(worker, time.monotonic())
        edge.events.attempt_failed(record, edge.boot_of(record.pool, worker), following.worker if following else None)

    def _ended(self, reason: str = "") -> None:
        status = self._answer.status if self._answer else 0
        self._record.end("ok" if status < 500 else "engine_error", status, reason)

    def _took(self) -> float:
        return time.monotonic() - self._sent_at


@lru_cache(maxsize=256)
def _known(
    id_size: int,
    level: bytes,
    model: tuple[Header, ...],
    names: tuple[bytes, ...],
    mode: BodyMode | None,
    *,
    changed: bool,
) -> list[bytes]:
    """The message that lets headers with these names pass, between the places of the request's id."""
    blank = blank_id(id_size)
    changes = HeaderChanges(_ours(blank, level, model), _removed(names, changed=changed))
    return wire.response_head(changes, mode).split(blank)


def _ours(request_id: bytes, level: bytes, model: Sequence[Header]) -> list[Header]:
    return [(b"x-request-id", request_id), (b"x-pointsman-level", level), *model]


def _removed(names: tuple[bytes, ...], *, changed: bool) -> list[str]:
    """`changed`: the body isn't as long as the engine said."""
    removed = [name.decode("ascii", "replace") for name in sorted({*names}) if internal(name)]
    return [*removed, "content-length"] if changed else removed
