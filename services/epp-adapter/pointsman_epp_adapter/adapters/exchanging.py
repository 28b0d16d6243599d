"""One request of Envoy's: taken in, decided, sent on, followed to its end."""

import time
from collections.abc import Iterable
from typing import Final

from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.paths import METHOD
from pointsman_contracts.journey import BodyEdit, PreprocessRequest
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Answer, Decision, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.rejected import refusal_of
from pointsman_edge.deciding.requested_model import requested_model
from pointsman_edge.deciding.static_choice import Closed
from pointsman_edge.reviewing.way_back import WayBack, Withheld
from pointsman_edge.sending.engine_tokens import still_its_own, token_edits
from pointsman_edge.sending.given_answer import answer_body, answer_headers
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.sending.routing_answer import OUTCOME, Place, routing_answer
from pointsman_edge.taking_in.body_size import check_length, check_not_empty
from pointsman_edge.taking_in.edited_body import edited_body
from pointsman_edge.taking_in.held_bodies import HeldBody
from pointsman_edge.taking_in.request_headers import ClientHeaders, check_content
from pointsman_edge.telling.exchange import CLIENT_GONE, Exchange
from pointsman_edge.telling.settling import settle
from pointsman_epp_adapter.adapters import engine_way, wire
from pointsman_epp_adapter.adapters.at_provider import AtProvider
from pointsman_epp_adapter.adapters.desk import Desk
from pointsman_epp_adapter.adapters.stream import EnvoyGone, ProtocolViolation, Stream, WholeBody
from pointsman_epp_adapter.adapters.watching import Watching
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.envoy_events import BodyMode, RequestHead
from pointsman_epp_adapter.domain.epp_headers import told
from pointsman_epp_adapter.domain.one_way import without_response_stages
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Span

_FAILED: Final = 500

_log = Log("exchange")


class _Given(Exception):
    """A stage ended the request with an answer of its own."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.stage)
        self.answer = answer


class Exchanging:
    """A POST to an API's path, or what no path takes. Whatever happens to it, `ResponseCompleted` says so once."""

    def __init__(self, desk: Desk, stream: Stream, head: RequestHead, path: str, api: str) -> None:
        self._desk = desk
        self._stream = stream
        self._head = head
        self._path = path
        self._policy: EdgePolicy = desk.policy()
        request_id = desk.ids.of(head.headers, desk.open)
        self._exchange = Exchange(request_id, api, time.monotonic())
        self.span: Span | None = None
        self._back: Watching | AtProvider | None = None
        self.held: HeldBody | None = None
        self.way_back: WayBack | None = None
        self._reviews = head.response_mode is not BodyMode.NONE

    async def run(self, refusal: Refusal | None = None) -> None:
        """To its end, or with `refusal` what no path takes. Raises EnvoyGone and ProtocolViolation, as told in the
        completion by then."""
        exchange, desk = self._exchange, self._desk
        desk.open[exchange.request_id] = exchange
        desk.metrics.open += 1
        try:
            self._back = await self._send_on(refusal)
            if self._back is not None:
                await self._back.run(self._stream)
        except Withheld as withheld:
            await self._withhold(withheld)
        except _Given as given:
            await self._give(given.answer)
        except Refusal as refused:
            await self._refuse(refused)
        except EnvoyGone:
            if self._back is None:
                exchange.end("client_gone", CLIENT_GONE)
            raise
        except ProtocolViolation as violation:
            exchange.end("rejected", 500, str(violation))
            raise
        except Exception as error:  # noqa: BLE001 - the client must have an answer and the request its event
            _log.error("request_failed", error, request_id=exchange.request_id)
            message = f"Internal error; request id {exchange.request_id}."
            await self._refuse(Refusal(500, message, type=SERVER_ERROR, code="internal_error"))
        finally:
            self._close()

    async def _send_on(self, refusal: Refusal | None) -> Watching | AtProvider | None:
        """Take the request in, have it decided, tell Envoy. None: only the route was asked for, and told."""
        if refusal is not None:
            raise refusal
        head, desk, exchange = self._head, self._desk, self._exchange
        headers = desk.headers.read(head.sent, trusted=desk.trusted.include(head.peer))
        check_content(headers)
        limit = self._policy.limits.max_body
        check_length(headers.content_length, limit)
        whole = await self._stream.body(head, limit)
        check_not_empty(whole.data)
        stages, rewrite = told(headers.stages, head.subset)
        body, asked = whole.data, ""
        if rewrite is not None:
            asked = requested_model(body)
            body = edited_body(body, (BodyEdit(field="model", value=rewrite),), None)
        held = self.held = desk.bodies.hold(exchange.request_id, body)
        exchange.received_at = time.monotonic()
        span = self.span = desk.tracing.begin(
            "request", desk.tracing.adopt(headers.traceparent), request_id=exchange.request_id, api=exchange.api
        )
        decision = await self._decided(stages, headers, body, span.traceparent)
        if decision.target.provider is not None and not headers.routing:
            return await self._to_provider(decision, whole, held.current, asked or decision.model)
        chosen = engine_way.chosen(desk, exchange, decision, head)
        if headers.routing:
            places = [Place(each.worker, each.address) for each in chosen]
            tokens = still_its_own(self._policy.config, decision.target, decision.body, held.tokens)
            told_headers, document = routing_answer(decision, places, tokens)
            exchange.end(OUTCOME, 200)
            told_headers = edited_answer_headers(told_headers, exchange.answer_headers)
            await self._stream.write(wire.answer(200, told_headers, document, exchange.request_id, OUTCOME))
            return None
        config, body = self._policy.config, held.current
        edits = token_edits(config, decision.target, exchange.api, body, decision.body, held.tokens)
        body = edited_body(body, edits, None)
        changes = engine_way.changes(desk, exchange, decision, chosen, head, headers, span.traceparent)
        await self._tell(whole, engine_way.messages(exchange, decision, chosen, changes, whole, body))
        way_back = desk.ways_back.begin(decision, self._policy, exchange, self) if self._reviews else None
        counted = desk.settings.stream_usage or self._policy.counts_tokens
        return Watching(
            desk, exchange, decision, chosen, asked or decision.model, head.response_mode, way_back, counted=counted
        )

    async def _decided(
        self, stages: dict[str, str], headers: ClientHeaders, body: bytes, traceparent: str | None
    ) -> Decision:
        desk, exchange, policy = self._desk, self._exchange, self._policy
        received_ms = time.time_ns() // 1_000_000
        request = PreprocessRequest(
            request_id=exchange.request_id,
            edge=desk.edge,
            received_ms=received_ms,
            deadline_ms=received_ms + round(policy.limits.request_timeout * 1000),
            revision=policy.revision,
            method=METHOD,
            path=self._path,
            headers=stages,
            client=desk.trusted.client_of(self._head.peer, headers.forwarded_for),
        )
        reply = await self._stream.listening(desk.decider.decide(request, body, policy, traceparent))
        now = time.monotonic()
        if isinstance(reply, Rejection):
            exchange.rejected_by(reply, now)
            raise refusal_of(reply)
        if isinstance(reply, Answer):
            raise _Given(reply)
        decision = reply if self._reviews else without_response_stages(reply, policy.postprocessing)
        exchange.decided(decision, now)
        return decision

    async def _to_provider(self, decision: Decision, whole: WholeBody, body: bytes, asked: str) -> AtProvider:
        desk, exchange, mode = self._desk, self._exchange, self._head.response_mode
        sent = desk.providers.call(decision, self._policy, exchange, body, asked, mode)
        stamps = {"level": decision.level, "request_id": exchange.request_id}
        await self._tell(whole, await desk.providers.told(sent, self._head, whole, stamps))
        way_back = desk.ways_back.way(decision, self._policy, exchange, self)
        return AtProvider(desk, exchange, sent, mode, way_back)

    async def _tell(self, whole: WholeBody, messages: Iterable[bytes]) -> None:
        for message in messages:
            await self._stream.write(message)
        if whole.trailers:
            await self._stream.write(CONTINUE["request_trailers"])

    async def _give(self, answer: Answer) -> None:
        """Pass on an answer that a stage gave, past the stages on the way back."""
        exchange = self._exchange
        exchange.answered_by(answer, time.monotonic())
        self._desk.announcer.answered(exchange, answer)
        headers, body = answer_headers(answer), answer_body(answer)
        way_back = self._desk.ways_back.begin(answer, self._policy, exchange, self)
        if way_back is not None:
            try:
                headers, body = await way_back.given(answer.status, headers, body, stream=answer.stream)
            except Withheld as withheld:
                await self._withhold(withheld)
                return
            way_back.left(body)
        exchange.first_byte_at = time.monotonic()
        exchange.bytes_out = len(body)
        headers = edited_answer_headers(headers, exchange.answer_headers)
        await self._stream.write(wire.answer(answer.status, headers, body, exchange.request_id, answer.stage))
        exchange.end("ok" if answer.status < _FAILED else "rejected", answer.status)

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer with an error, past the stages of every answer."""
        exchange = self._exchange
        if exchange.outcome is None:
            self._refused(refusal)
        status, headers, body = await self._desk.ways_back.error(refusal, self._policy, exchange, self)
        headers = edited_answer_headers(headers, exchange.answer_headers)
        await self._stream.write(wire.answer(status, headers, body, exchange.request_id, refusal.told_code))

    async def _withhold(self, withheld: Withheld) -> None:
        exchange = self._exchange
        exchange.end("blocked", withheld.status, withheld.message, withheld.told_code)
        await self._stream.write(wire.immediate(withheld, exchange.request_id, exchange.api, exchange.answer_headers))

    def _refused(self, refusal: Refusal) -> None:
        exchange = self._exchange
        if isinstance(refusal, Closed) or refusal.code == STAGE_UNAVAILABLE:
            exchange.level = "closed"
        exchange.end("rejected", refusal.status, refusal.detail, refusal.told_code)
        self._desk.announcer.rejected(exchange, refusal)

    def _close(self) -> None:
        exchange, desk = self._exchange, self._desk
        if self._back is not None:
            self._back.close()
        if exchange.outcome is None:
            exchange.end("shutdown" if desk.stopping.is_set() else "client_gone", CLIENT_GONE)
        if self.span is not None:
            ok = exchange.outcome == "ok"
            self.span.end(None if ok else exchange.outcome, status=exchange.status, level=exchange.level)
        del desk.open[exchange.request_id]
        desk.metrics.open -= 1
        settle(exchange, self._policy.prices, desk.metrics)
        desk.metrics.completed(exchange)
        desk.announcer.completed(exchange, time.monotonic())
        if self._back is None or self._reviews:
            desk.ways_back.after(self._policy, exchange, self)
        elif self.held is not None:
            desk.bodies.let_go(self.held)
