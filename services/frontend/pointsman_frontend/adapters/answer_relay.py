"""Passes the answer of one attempt on to the client: with the gateway's headers, by its kind, to an end that is
recorded."""

import time
from typing import Final

import msgspec

from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_apis.usage import UsageTail
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_edge.edge import Edge
from pointsman_edge.sending.encoded_answer import ENCODINGS, IDENTITY
from pointsman_edge.sending.engine_pause import error_headers
from pointsman_edge.sending.error_shape import ErrorShape
from pointsman_edge.sending.missing_path import MISSING as NO_PATH
from pointsman_edge.sending.missing_path import MissingPath, is_json
from pointsman_edge.sending.model_name import chosen_model, renaming
from pointsman_edge.sending.moving_on import BLAMELESS, FAILED
from pointsman_edge.sending.packed_vectors import with_packed_vectors
from pointsman_edge.sending.queue_time import queue_time
from pointsman_edge.sending.unasked_ids import WithoutIds
from pointsman_edge.sending.unasked_usage import Rewriting, without_unasked_usage
from pointsman_edge.taking_in.bodies import asked_choices
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.attempt_reports import AttemptReports
from pointsman_frontend.adapters.decoded_answer import DecodedAnswer
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.first_words import SecondOpinion, beginning, whole_body
from pointsman_frontend.adapters.followed_answer import follow_answer
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.relay import (
    Answering,
    end_cut_off,
    gathered,
    is_stream,
    relay_document,
    relay_pieces,
    relay_stream,
)
from pointsman_frontend.adapters.resumed_streams import ResumedStreams
from pointsman_frontend.domain.heads import ResponseHeaderRules, stamps

_ERROR: Final = 400
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")


class AttemptMade(msgspec.Struct):
    """A request that was sent to an endpoint, which has begun to answer."""

    endpoint: ChosenEndpoint
    sent_at: float | None
    """Monotonic seconds; None for an attempt that has failed and is recorded, whose error is the client's answer."""
    moves: bool = False
    """Whether another endpoint can begin the request."""
    doubts: SecondOpinion | None = None


class AnswerRelay:
    """Serves one edge."""

    def __init__(self, edge: Edge, reports: AttemptReports, resumed: ResumedStreams, *, tell_endpoint: bool) -> None:
        """`tell_endpoint`: name the worker that answers in a header."""
        self._edge = edge
        self._reports = reports
        self._resumed = resumed
        self._tell_endpoint = tell_endpoint
        self._rules = ResponseHeaderRules()

    async def relay_answer(self, request: Outgoing, attempt: AttemptMade, engine: Answering) -> None:
        """Pass an answer on. Raises EndpointFailed while nothing of it has left, and Refusal for one that was cut off
        before."""
        record, client, moves = request.record, request.client, attempt.moves
        headers, content_type, encoding = self._rules.pass_on(engine.headers)
        if encoding in ENCODINGS:
            engine = DecodedAnswer(engine)
            headers, content_type, _ = self._rules.pass_on(engine.headers)
        elif encoding and encoding != IDENTITY and moves:
            raise EndpointFailed(FAILED, "its answer has an encoding that it wasn't asked for")
        outcome: str | None = "answered"
        changes: Rewriting | None = None
        try:
            begun, stream = await beginning(
                engine, record.api, content_type, request.thinking, moves=moves, doubts=attempt.doubts
            )
            self._note_beginning(record, attempt, stream=stream)
            if stream is not is_stream(content_type):
                headers = _with_type(headers, _EVENTS if stream else _JSON)
            headers += self._own_headers(request, attempt.endpoint)
            usage = record.tail = (
                record.api.usage()
                if not record.policy.response_processors
                else follow_answer(self._edge, record, engine.status, stream, headers)
            )
            changes = _changes(request, attempt.endpoint, stream=stream)
            error = None
            if stream:
                error = await relay_stream(
                    engine=engine,
                    client=client,
                    headers=headers,
                    usage=usage,
                    name=changes,
                    api=record.api,
                    begun=begun,
                    asked=asked_choices(request.record.api.name, request.record.body, request.decision),
                    resuming=request.resuming,
                )
            else:
                await _relay_whole(request, attempt, engine, headers, usage=usage, begun=begun, changes=changes)
            if error is None:
                record.end("ok" if engine.status < 500 else "engine_error", engine.status)
            else:
                outcome = "cut_off"
                reason = f"the stream ended with an error: {error.kind or error.status}"
                record.end("cut_off", engine.status, reason, error.kind)
                self._reports.report_cut_off(record, attempt.endpoint.worker, reason)
        except AnswerCutOff as cut:
            failure = self._resumed.broken(request, cut, changes)
            if failure is None and (moves or cut.outcome in BLAMELESS) and not client.started:
                record.first_byte_at = record.tail = None
                failure = EndpointFailed(cut.outcome, str(cut))
            if failure is not None:
                outcome = None
                raise failure from None
            outcome = "cut_off"
            self._reports.report_cut_off(record, attempt.endpoint.worker, str(cut))
            await end_cut_off(record, client, engine.status, cut)
        except EndpointFailed:
            outcome = None
            raise
        finally:
            if outcome is not None and attempt.sent_at is not None:
                took_s = time.monotonic() - attempt.sent_at
                record.record_attempt(attempt.endpoint.worker, outcome, engine.status, took_s)

    def _note_beginning(self, record: RequestRecord, attempt: AttemptMade, *, stream: bool) -> None:
        now = record.first_byte_at = time.monotonic()
        record.stream = stream
        if stream and attempt.sent_at is not None:
            self._edge.events.publish_start(record, attempt.endpoint.worker, now - attempt.sent_at)

    def _own_headers(self, request: Outgoing, endpoint: ChosenEndpoint) -> Headers:
        record, decision = request.record, request.decision
        level = record.level if record.legs else decision.level
        headers = stamps(level, endpoint.worker if self._tell_endpoint else None)
        if record.queued_ms:
            headers = headers + queue_time(record.queued_ms)
        target = endpoint.target or decision.target
        if target.model == decision.model:
            return headers
        return headers + chosen_model(record.policy.prices, target, decision.model)


def _changes(request: Outgoing, endpoint: ChosenEndpoint, *, stream: bool) -> Rewriting | None:
    """The changes of the answer's body; None where it passes as it is."""
    record, decision, resuming = request.record, request.decision, request.resuming
    changes: Rewriting | None = renaming((endpoint.target or decision.target).model, decision.model)
    if record.api is EMBEDDINGS:
        changes = with_packed_vectors(record.body, changes)
    if stream:
        changes = without_unasked_usage(decision.body, changes)
    if request.drops_ids or (not stream and resuming is not None and resuming.asks_ids):
        changes = WithoutIds(changes)
    return changes


async def _relay_whole(
    request: Outgoing,
    attempt: AttemptMade,
    engine: Answering,
    headers: Headers,
    *,
    usage: UsageTail,
    begun: bytes,
    changes: Rewriting | None,
) -> None:
    """Pass on what isn't a stream. Raises AnswerCutOff, and EndpointFailed for an error in place of an answer."""
    api, status = request.record.api, engine.status
    if status >= _ERROR:
        changes = ErrorShape(status, api, changes)
        if status in NO_PATH:
            changes = MissingPath(status, api, request.decision.model, changes, anyway=not is_json(headers))
        headers = error_headers(headers)
        body = await gathered(engine, begun)
    elif api.passed and not is_json(headers):
        # Sounds and texts of APIs that pass as they are aren't waited for: clients play or show them as they come.
        await relay_pieces(engine, request.client, headers, usage, begun)
        return
    else:
        body = await whole_body(
            engine,
            begun,
            api,
            moves=attempt.moves,
            doubts=attempt.doubts,
            asked=asked_choices(request.record.api.name, request.record.body, request.decision),
        )
    await relay_document(engine=engine, client=request.client, headers=headers, usage=usage, name=changes, body=body)


def _with_type(headers: Headers, content_type: tuple[bytes, bytes]) -> Headers:
    return [*(header for header in headers if header[0] != b"content-type"), content_type]
