"""One request to an API over HTTP: its body in, the answer out, and its end from outside."""

import asyncio
import re
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.late_events import as_events
from pointsman_apis.paths import Route
from pointsman_contracts.cascade import LAST
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import Answer, Decision, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.static_choice import Closed
from pointsman_edge.edge import TICK_S, Edge
from pointsman_edge.request import EdgeRequest
from pointsman_edge.reviewing.response_stages import error_answer
from pointsman_edge.sending.own_answers import Place
from pointsman_edge.sending.queue_time import queue_time
from pointsman_edge.taking_in.bodies import check_length, check_presence
from pointsman_edge.telling.request_record import CLIENT_GONE
from pointsman_frontend.adapters.cascades import Cascades
from pointsman_frontend.adapters.forwarder import Forwarder
from pointsman_frontend.adapters.held_answer import give_stored
from pointsman_frontend.adapters.http_turn import ClientGone, Headers, Turn, id_headers
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.relay import ResponseWriter
from pointsman_frontend.adapters.reviewed_writer import ReviewedWriter
from pointsman_frontend.domain.cors import answered

COMMENTS_AFTER_S: Final = 0.5
"""An endpoint's comments let the head of a stream leave only after this long: until then an error has its status."""
_EVENTS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true\b')
"""Can't be part of a prompt: a quote inside a JSON string is written `\\"`."""
LAST_WORDS_S: Final = 1.0
"""How long an aborted request may take to answer its client."""

Reason = Literal["client_gone", "timeout", "shutdown"]
"""Why a request is ended from outside."""


@dataclass(frozen=True, slots=True)
class HttpEdge:
    """Everything that HTTP requests share."""

    edge: Edge
    forwarder: Forwarder
    cascades: Cascades
    body_timeout_s: float
    """How long a request's body may take to arrive."""


class HttpRequest(EdgeRequest):
    """One request to the path of an API. The task that serves it is cancelled once, for `_reason`."""

    interruptions = (asyncio.CancelledError, ClientGone)
    _ending = False
    _reason: Reason | None = None
    _draining: asyncio.TimerHandle | None = None
    """Ends the reading of an answer whose client is gone."""
    _question: PreprocessRequest | None = None
    """The request as the stages got it."""
    _thinking_since = 0.0
    """When an endpoint first sent something that says nothing; 0 before."""
    _quiet_since = 0.0
    """When the client got its last bytes, about."""
    _quiet_at = -1
    """How many bytes of the answer it had then."""
    _asks_stream: bool | None = None
    outgoing: Outgoing | None = None
    """The request on its way to engines, once it is."""

    def __init__(self, http: HttpEdge, requested: Route, turn: Turn, refusal: Refusal | None = None) -> None:
        """`refusal`: why no path takes the request, which is published like any other refused request."""
        super().__init__(http.edge, turn.method, requested, turn.headers)
        record = self.record
        limits = record.policy.limits
        turn.ids = id_headers(record.request_id, requested.api.request_id_header)
        if limits.cors is not None:
            turn.extra = answered(limits.cors, turn.headers)
        self._http = http
        self._turn = turn
        self._refusal = refusal
        self.due = record.received_at + limits.request_timeout

    @property
    def sent_status(self) -> int | None:
        """The status that the client has already; None while it can still get an error instead."""
        return self._turn.status

    async def serve(self) -> None:
        """Read the request, have it decided, send it, and pass the answer on."""
        if self._refusal is not None:
            raise self._refusal
        turn, record = self._turn, self.record
        headers = self.take_in(turn.headers, trusted=turn.wire.trusted)
        body = turn.whole()
        # The parser holds a body to the length that its head gives, which `take_in` has checked.
        if body is None or headers.content_length is None:
            limit = record.policy.limits.max_body
            if body is None:
                body = await _read_body(turn, limit, self._http.body_timeout_s)
            check_length(len(body), limit)
        if self.codings:
            body = await self.decode(body)
        if not body or record.api.body == "none":
            check_presence(body, record.api.body)
        if (seeking := self.seek_response(body)) is not None:
            await seeking
        question = self.complete_body(body, headers.stages, headers, turn.wire.peer)
        self._question = question
        turn.wire.hung_up = self._hung_up
        reply = self.record_reply(await self.edge.decider.decide(question, body, record.policy, record.traceparent))
        turn.answer_headers = record.answer_headers
        if isinstance(reply, Answer):
            await self._give(reply)
        elif headers.routing:
            route_headers, document = self.route(reply, [Place(each.worker, each.url) for each in reply.endpoints])
            await turn.answer(200, route_headers, document)
        else:
            writer = self._writer(reply) if reply.response or record.policy.postprocessing else turn
            request = self.outgoing = Outgoing(
                record=record,
                decision=reply,
                client=writer,
                method=self.method,
                target=turn.target.sent,
                query=turn.target.query,
                headers=headers.engine,
                thinking=self.thinking,
                decide_again=self._decide_again,
            )
            if reply.cascade is None:
                await self._http.forwarder.forward(request)
            else:
                await self._http.cascades.serve_request(request, self._decide_next)

    def thinking(self) -> None:
        """An endpoint sends something before its answer says something, e.g. comments while a model thinks."""
        now = time.monotonic()
        if not self._thinking_since:
            self._thinking_since = now
        elif now - self._thinking_since >= COMMENTS_AFTER_S:
            self._keep_open(now)

    def keep_alive(self, now: float) -> None:
        """Keep the client's connection open, if its stream has been silent for too long; `now` is monotonic."""
        if self._turn.bytes_out != self._quiet_at:
            self._quiet_at, self._quiet_since = self._turn.bytes_out, now
            return
        after_s = self.record.policy.limits.keep_alive
        # By the next tick it would be too long.
        if after_s and now - self._quiet_since > after_s - 2 * TICK_S:
            self._keep_open(now)

    def _keep_open(self, now: float) -> None:
        turn, record = self._turn, self.record
        if not turn.started:
            if not self._may_begin:
                return
            if turn.early is None:
                level = (b"x-pointsman-level", record.level.encode("ascii", "replace"))
                turn.answer_headers = record.answer_headers
                turn.begin_early([*_EVENTS, level, *queue_time(record.queued_ms)], partial(as_events, record.api))
                if self.review is not None:
                    self.review.headers_left = True
        elif not record.stream:
            return
        if turn.write_aside(record.api.keep_alive):
            self._quiet_since = now

    @property
    def _may_begin(self) -> bool:
        """Whether the head of a stream may leave before its answer: endpoints are asked, and the client wants one."""
        record = self.record
        if record.decision is None or record.outcome is not None or self._turn.complete or self._ending:
            return False
        if self._asks_stream is None:
            self._asks_stream = _STREAM.search(record.body) is not None
        return self._asks_stream

    async def answer(self, status: int, headers: Headers, body: bytes, details: str) -> None:
        """Send a whole response."""
        del details
        self._turn.answer_headers = self.record.answer_headers
        await self._turn.answer(status, headers, body)

    async def interrupted(self, interruption: BaseException) -> None:
        """Implements `EdgeRequest.interrupted`."""
        record, turn = self.record, self._turn
        if isinstance(interruption, ClientGone):
            record.end("client_gone", CLIENT_GONE)
            return
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        # Without a reason of our own it is the server, which ends the requests that are left at its end.
        reason = self._reason or "shutdown"
        self.ending()
        if reason == "client_gone":
            record.end("client_gone", turn.status or CLIENT_GONE)
            return
        if reason == "timeout":
            refusal = Refusal(504, "The request took too long.", type=SERVER_ERROR, code="request_timeout")
        else:
            refusal = Closed(
                "The gateway is shutting down; try again.", "shutting_down", dropped_reason="rejected-shutting-down"
            )
        record.end(reason, turn.status or refusal.status, refusal.message, refusal.told_code)
        if not turn.started:
            await _briefly(turn.answer(refusal.status, *error_answer(refusal, record.api)))
        elif record.stream and not turn.complete:
            await _briefly(turn.end(record.api.error_event(refusal)))

    def await_report(self) -> None:
        """See `EdgeRequest.await_report`: the answer's end leaves once the stream has the report."""
        held = self._turn.hold_end()
        self.record.reported = lambda: None if held.done() else held.set_result(None)

    def ending(self) -> None:
        """The request ends by itself now: its last writes aren't interrupted."""
        super().ending()
        self._ending = True

    def overdue(self) -> None:
        """The request has taken too long."""
        self._stop("timeout")

    def closed(self) -> None:
        """The request has ended, and can't be interrupted any more: record the facts that are only known now."""
        self._ending = True
        if self._draining is not None:
            self._draining.cancel()
        self.record.bytes_out = self._turn.bytes_out
        # It knows this request, and its stream knows it: a circle would wait for the garbage collector.
        outgoing, self.outgoing = self.outgoing, None
        if outgoing is not None:
            outgoing.resuming = None

    async def _decide_again(self) -> Decision | None:
        """Another decision about the request, whose endpoints have failed; None if there is none."""
        reply = await self._ask_again()
        return reply if isinstance(reply, Decision) else None

    async def _decide_next(self, escalated: tuple[str, ...]) -> Decision | Answer | None:
        """The decision about the next model of the request's cascade; None if there is none. An answer of that model
        from a cache has been given to the client."""
        reply = await self._ask_again(escalated)
        if isinstance(reply, Answer):
            self.record.decision = None
            self.record_reply(reply)
            await self._give(reply, LAST)
        elif reply is not None and self.review is not None:
            self.review.follow_decision(reply.response)
        return reply

    async def _ask_again(self, escalated: tuple[str, ...] | None = None) -> Decision | Answer | None:
        record, question = self.record, self._question
        if question is None or record.decision is None:
            return None
        record.decisions += 1
        self._question = question = question.asked_again(record.decisions, escalated or question.escalated)
        try:
            reply = await self.edge.decider.decide(question, record.body, record.policy, record.traceparent)
        except Refusal:
            return None
        return None if isinstance(reply, Rejection) else reply

    def _hung_up(self) -> None:
        record = self.record
        target = record.target
        provider = None if target is None else record.policy.config.providers.get(target.provider or "")
        if provider is None or record.worker is None or provider.on_disconnect == "abort" or self._ending:
            self._stop("client_gone")
            return
        # The answer is read to its end, for its usage: the turn writes nothing to a client that is gone.
        record.end("client_gone", self._turn.status or CLIENT_GONE)
        self._draining = asyncio.get_running_loop().call_later(provider.drain_timeout, self._stop, "client_gone")

    def _stop(self, reason: Reason) -> None:
        """End the request, unless it is ending already."""
        if not self._ending and self._turn.task is not None:
            self._ending = True
            self._reason = reason
            self._turn.task.cancel()

    def _writer(self, reply: Decision | Answer) -> ResponseWriter:
        """Takes the answer: the client, or for it the response stages."""
        review = self.edge.response_stages.begin_review(self, reply)
        return self._turn if review is None else ReviewedWriter(self._turn, review, self.record)

    async def _give(self, answer: Answer, verdict: str = "") -> None:
        """Pass on the answer of a stage. `verdict`: of the request's cascade."""
        self.record.first_byte_at = time.monotonic()
        await give_stored(self._writer(answer), answer, verdict)
        self.end_with_answer(answer)


async def _briefly(last_words: Coroutine[object, object, None]) -> None:
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await last_words
    except TimeoutError:
        return  # the client doesn't read; the connection ends without them


async def _read_body(turn: Turn, limit: int, within_s: float) -> bytes:
    """The whole body, or more of it than `limit` bytes. Raises Refusal 408 after `within_s` seconds, and ClientGone."""
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within_s):
            # The length of a chunked body isn't known before its end: stop reading once it is over the limit.
            while size <= limit and (piece := await turn.read()):
                pieces.append(piece)
                size += len(piece)
    except TimeoutError:
        raise Refusal(
            408, f"The body was not complete within {within_s:g} s; {size} bytes had come.", code="request_timeout"
        ) from None
    return b"".join(pieces)
