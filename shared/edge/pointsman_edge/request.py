"""One request at an edge: taken in, decided, sent, its answer passed on, and ended, whichever protocol it came by."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import ClassVar

from msgspec.structs import replace

from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.paths import Route
from pointsman_apis.responses import RESPONSES
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Answer, Decision, Rejection
from pointsman_core.given_worker import WORKER
from pointsman_core.header_names import MIRRORED
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.decider import refusal_of
from pointsman_edge.deciding.static_choice import Closed
from pointsman_edge.edge import Edge
from pointsman_edge.reviewing.answer_review import AnswerReview, Headers, Withheld
from pointsman_edge.reviewing.response_stages import error_answer
from pointsman_edge.sending.doubtful_ends import doubt_of
from pointsman_edge.sending.engine_tokens import still_its_own
from pointsman_edge.sending.own_answers import OUTCOME, Place, routing_answer
from pointsman_edge.sending.own_limits import GatewayExhausted, exhausted
from pointsman_edge.taking_in.bodies import check_content, check_length
from pointsman_edge.taking_in.encodings import codings_of, decoded
from pointsman_edge.taking_in.previous_response import previous_response
from pointsman_edge.taking_in.request_headers import ClientHeaders
from pointsman_edge.telling.following import end_answer
from pointsman_edge.telling.request_record import NO_POOL, RequestRecord
from pointsman_edge.telling.request_span import request_attributes
from pointsman_edge.telling.stored_responses import StoredResponse
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Span

_ERROR = 400
_FAILED = 500

_log = Log("edge")


class EdgeRequest(ABC):
    """A request from its head to its last event. The class of a protocol reads and answers it."""

    interruptions: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions by which the protocol ends a request from outside; `interrupted` gets them."""
    review: AnswerReview | None = None
    """The review of the answer, once one has begun."""
    reviewed_after = True
    """Whether stages are asked after the last byte: not where the answer passed by this edge."""
    span: Span | None = None
    """The span of the whole request, if it is traced."""
    due = math.inf
    """Monotonic time at which the request has taken too long."""
    codings: tuple[str, ...] = ()
    """Codings of the client's body."""
    _stored: StoredResponse | None = None
    """The response that the path names or the body continues, if an edge knows it."""

    def __init__(self, edge: Edge, method: str, requested: Route, headers: Headers) -> None:
        """`requested`: the meaning of the path; `headers`: of the request, names in lower case."""
        self.edge = edge
        self.method = method
        self.requested = requested
        self.record = RequestRecord(
            edge.ids.choose_id(headers, edge.open), requested.api, edge.policy(), time.monotonic()
        )

    async def run(self) -> None:
        """Serve the request to its end. `ResponseCompleted` is published once, whatever happens."""
        edge, record = self.edge, self.record
        edge.open[record.request_id] = self
        try:
            await self.serve()
        except Withheld as withheld:
            self.ending()
            record.end("blocked", self.sent_status or withheld.status, withheld.message, withheld.told_code)
            if self.sent_status is None:
                await self.answer(withheld.status, *error_answer(withheld, record.api), withheld.told_code)
        except GatewayExhausted as own:
            await self._run_out(own)
        except Refusal as refusal:
            await self._refuse(refusal)
        except self.interruptions as interruption:
            await self.interrupted(interruption)
        except Exception as error:  # noqa: BLE001 - the client must have an answer and the request its event
            own = exhausted(error)
            if own is not None:
                await self._run_out(own)
                return
            _log.error("request_failed", error, request_id=record.request_id)
            message = f"Internal error; request id {record.request_id}."
            await self._refuse(Refusal(500, message, type=SERVER_ERROR, code="internal_error"))
        finally:
            self._end()

    @property
    @abstractmethod
    def sent_status(self) -> int | None:
        """The status that the client has already; None while it can still get an error instead."""

    @abstractmethod
    async def serve(self) -> None:
        """Read the request, have it decided, send it, and pass the answer on. Raises Refusal, Withheld, and one of
        `interruptions`."""

    @abstractmethod
    async def answer(self, status: int, headers: Headers, body: bytes, details: str) -> None:
        """Send a whole response. `details`: its reason in one word."""

    @abstractmethod
    async def interrupted(self, interruption: BaseException) -> None:
        """The protocol ended the request from outside: record how, and raise the exception again if its caller needs
        it."""

    def ending(self) -> None:
        """The request ends by itself now: its last writes aren't interrupted."""
        self.due = math.inf

    def overdue(self) -> None:
        """The request has taken too long. A protocol whose peer ends such requests leaves that to it."""
        self.due = math.inf

    def keep_alive(self, now: float) -> None:
        """Keep the client's connection open, if its stream has been silent for too long; `now` is monotonic. A protocol
        in which only the peer writes to the client does nothing."""
        del now

    @abstractmethod
    def closed(self) -> None:
        """The request has ended, and can't be interrupted any more: record the facts that are only known now."""

    def take_in(self, headers: Headers, *, trusted: bool) -> ClientHeaders:
        """The client's headers, sorted by their readers; `trusted` as in `HeaderRules.read`. Raises Refusal if they
        can't be taken."""
        read = self.edge.headers.read(headers, trusted=trusted)
        record = self.record
        if MIRRORED in read.stages:
            record.mirrored = True
        kind = record.api.body
        if kind != "json" or read.content_type != "application/json" or read.content_encoding is not None:
            check_content(read, kind)
            self.codings = codings_of(read.content_encoding, record.policy.limits.request_encodings)
        length, limit = read.content_length, record.policy.limits.max_body
        if length is not None and length > limit:
            check_length(length, limit)
        return read

    async def decode(self, body: bytes) -> bytes:
        """The client's body without its codings. Raises Refusal where `decoded` does."""
        if not self.codings or not body:
            return body
        return await asyncio.to_thread(decoded, body, self.codings, self.record.policy.limits.max_body)

    def seek_response(self, body: bytes) -> Coroutine[object, object, None] | None:
        """Find the response that the path names or the body continues, before `complete_body`; None for a request that
        names none. Awaiting raises Refusal where `StoredResponses.find_response` does."""
        response = self.requested.response
        if response is not None:
            return self._seek(response, continued=False)
        if self.record.api is RESPONSES and (response := previous_response(body)) is not None:
            return self._seek(response, continued=True)
        return None

    async def _seek(self, response: str, *, continued: bool) -> None:
        edge = self.edge
        stored = await edge.responses.find_response(response, self.record.policy.config, continued=continued)
        if stored is not None:
            self._stored = stored

    def complete_body(
        self, body: bytes, stages: dict[str, str], headers: ClientHeaders, peer: str, model: str | None = None
    ) -> PreprocessRequest:
        """The body is here: hold it for the stages, and begin the request's trace.

        Returns the request as the stages get it, with the headers `stages`; `model` is its model if the body can't name
        it.
        """
        edge, record, requested = self.edge, self.record, self.requested
        request_id, policy = record.request_id, record.policy
        record.held = edge.bodies.hold_body(request_id, body)
        if headers.traceparent is not None or edge.tracing.exports:
            self._begin_trace(headers.traceparent)
        if requested.model is not None:
            model = requested.model
        stored = self._stored
        if stored is not None:
            if not stored.continued:
                model = stored.kept.model
            if stored.kept.worker:
                stages = {**stages, WORKER[0]: stored.kept.worker}
        now = time.monotonic()
        left_s = policy.limits.request_timeout - (now - record.received_at)
        record.received_at = now
        received_ms = time.time_ns() // 1_000_000
        forwarded_for = headers.forwarded_for
        return PreprocessRequest(
            request_id=request_id,
            edge=edge.instance,
            attempt=1,
            received_ms=received_ms,
            deadline_ms=received_ms + round(left_s * 1000),
            revision=policy.revision,
            method=self.method,
            path=requested.path if requested.pool is None else requested.asked_path,
            model=model,
            continued_tokens=None if stored is None or not stored.continued else stored.kept.tokens,
            headers=stages,
            client=peer if forwarded_for is None else edge.trusted.client_of(peer, forwarded_for),
            body_bytes=None,
        )

    def _begin_trace(self, header: str | None) -> None:
        record, tracing = self.record, self.edge.tracing
        parent = tracing.adopt_trace(header)
        if parent is not None:
            self.span = tracing.begin_span(
                f"{self.method} {record.api.path}", parent, "server", pointsman__request_id=record.request_id
            )
            record.traceparent = self.span.traceparent

    def record_reply(self, reply: Decision | Rejection | Answer) -> Decision | Answer:
        """Record the reply of the stages. Raises Refusal for a rejection."""
        record, now, stored = self.record, time.monotonic(), self._stored
        if isinstance(reply, Decision):
            if stored is not None:
                # No other model's engine has the response.
                reply = replace(reply, alternatives=())
            record.record_decision(reply, now)
            if stored is not None:
                responses, kept = self.edge.responses, stored.kept
                responses.refuse_other_client(stored, reply.identity)
                responses.refuse_restarted(stored, self.edge.boot_of(kept.pool, kept.worker))
        elif isinstance(reply, Rejection):
            record.rejected_by(reply, now)
            explained = None if stored is None else self.edge.responses.explain_rejection(stored, reply)
            raise explained or refusal_of(reply)
        else:
            record.answered_by(reply, now)
            self.edge.events.publish_answer(record, reply)
        identity = reply.identity
        if identity is not None and identity.batch:
            self.await_report()
        return reply

    def route(self, decision: Decision, places: list[Place]) -> tuple[Headers, bytes]:
        """Headers and body for a client that asks for the route alone; the request ends. `places` are the endpoints
        that this edge would use."""
        record = self.record
        held = record.held
        tokens = None if held is None else held.tokens
        tokens = still_its_own(record.policy.config, decision.target, decision.body, tokens)
        record.end(OUTCOME, 200)
        return routing_answer(decision, places, tokens)

    def end_with_answer(self, answer: Answer) -> None:
        """The client has the answer of a stage; the request ends."""
        self.record.end("ok" if answer.status < _FAILED else "rejected", answer.status)

    async def _run_out(self, own: GatewayExhausted) -> None:
        """Answer that this process has run out of something: an endpoint that wasn't reached has no part in it."""
        self.edge.metrics.run_out(own.resource)
        if not self.record.attempts:
            self.record.worker = None
        await self._refuse(own)

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer with an error, reviewed by the stages of every answer."""
        self.ending()
        record = self.record
        if record.outcome is None:
            if isinstance(refusal, Closed) or refusal.code == STAGE_UNAVAILABLE:
                record.level = "closed"
            if record.attempts:
                record.record_all_failed(refusal, self.sent_status)
            else:
                record.end("rejected", refusal.status, refusal.detail, refusal.told_code)
                self.edge.events.publish_rejection(record, refusal)
        if self.sent_status is None:
            await self.answer(*await self.edge.response_stages.review_error(self, refusal), refusal.told_code)

    def await_report(self) -> None:
        """The request is a line of a batch: its report leaves at once, and the stream's confirmation is awaited. A
        batch doesn't send a line again that it has an answer to, and only the report charges it."""
        self.record.reported = _nothing

    def _end(self) -> None:
        edge, record = self.edge, self.record
        self.closed()
        del edge.open[record.request_id]
        try:
            record.settle()
        except Exception as error:  # noqa: BLE001 - the request must have its event, and its body must go
            self._unsettled(error)
        else:
            _doubt(record)
        if record.followers is not None:
            end_answer(record, record.outcome or "")
        if record.api is RESPONSES:
            edge.responses.remember_response(record, self._boot_of_answer())
        exported: str | None = None
        if self.span is not None and self.span.is_recording:
            exported = self.span.traceparent
            self.span.end_with(request_attributes(record), None if record.outcome == "ok" else record.outcome)
        edge.metrics.count_request(record, exported)
        edge.events.publish_completion(record, time.monotonic())
        if self.reviewed_after and (self.review is not None or record.policy.postprocessing):
            edge.response_stages.ask_after_answer(self)
        elif record.held is not None:
            edge.bodies.let_go(record.held)
        if edge.all_ended is not None and not edge.open:
            edge.all_ended.set()

    def _boot_of_answer(self) -> str:
        record = self.record
        pool = None if record.target is None else record.target.pool
        return "" if pool is None or record.worker is None else self.edge.boot_of(pool, record.worker)

    def _unsettled(self, error: Exception) -> None:
        record, metrics = self.record, self.edge.metrics
        record.usage = record.served = record.cost = record.cost_nanos = None
        metrics.unsettled += 1
        if metrics.unsettled == 1:
            _log.error(
                "unsettled",
                error,
                request_id=record.request_id,
                hint="the usage of this request is lost; pointsman_edge_unsettled_total counts further requests",
            )


def _doubt(record: RequestRecord) -> None:
    """Give the last attempt its outcome where its engine's answer says nothing, or one thing over and over."""
    tail, usage, attempts = record.tail, record.usage, record.attempts
    if tail is None or usage is None or not attempts or record.pool == NO_POOL:
        return
    last = attempts[-1]
    if last.outcome != "answered" or record.status >= _ERROR:
        return
    found = doubt_of(record.api, tail, record.outcome or "", usage.completion_tokens)
    if found:
        record.attempts = (*attempts[:-1], replace(last, outcome=found))


def _nothing() -> None:
    pass
