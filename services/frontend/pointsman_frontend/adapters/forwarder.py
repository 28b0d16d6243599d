"""Sends a decided request to its endpoints, one after the other, until one answers."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman_apis import named
from pointsman_apis.errors import SERVER_ERROR
from pointsman_contracts.content import PromptTokens
from pointsman_contracts.journey import BodyEdit, retold
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.engine_load import EngineLoad
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.static_choice import EngineState, elsewhere
from pointsman_edge.sending.chosen_model import chosen_model
from pointsman_edge.sending.engine_tokens import token_edits
from pointsman_edge.sending.header_edits import folded, with_edits
from pointsman_edge.sending.model_name import renaming
from pointsman_edge.sending.outward import outward
from pointsman_edge.sending.unasked_usage import without_unasked_usage
from pointsman_edge.taking_in.edited_body import edited_body
from pointsman_edge.taking_in.request_headers import OF_ONE_POOL
from pointsman_edge.telling.announcer import Announcer
from pointsman_edge.telling.exchange import Exchange
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_frontend.adapters.client import Client, Headers
from pointsman_frontend.adapters.engine_client import Call, EngineClient, origin_of
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.providers import UNSUPPORTED, Providers, final, is_external, refusal_of, told
from pointsman_frontend.adapters.relay import Answering, is_stream, relay_document, relay_stream
from pointsman_frontend.domain.engine_request import request_head
from pointsman_frontend.domain.response_headers import ResponseHeaderRules
from pointsman_frontend.domain.retry_budget import RetryBudget
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Tracing

_log = Log("engines")


@dataclass(slots=True)
class Outgoing:
    """A decided request: what the client sent, where it goes, who waits for the answer."""

    exchange: Exchange
    decision: Decision
    client: Client
    policy: EdgePolicy
    path: bytes
    headers: Headers
    body: bytes
    tokens: PromptTokens | None
    """Its prompt's, as far as they were counted."""
    traceparent: str | None


_CUT_OFF: Final = "engine_cut_off"


class Forwarder:
    """Tries each endpoint of a decision at most once, and another one only before the first byte."""

    def __init__(
        self,
        engines: EngineClient,
        load: EngineLoad,
        announcer: Announcer,
        metrics: EdgeMetrics,
        pools: Mapping[str, PoolSnapshot],
        tracing: Tracing,
        providers: Providers,
        *,
        tell_endpoint: bool,
    ) -> None:
        self._engines = engines
        self._load = load
        self._announcer = announcer
        self._metrics = metrics
        self._pools = pools
        self._tracing = tracing
        self._tell_endpoint = tell_endpoint
        self._providers = providers
        self._budget = RetryBudget()
        self._rules = ResponseHeaderRules()

    async def forward(self, request: Outgoing) -> None:
        """Have the request answered. Raises Refusal when no endpoint does."""
        self._budget.earn()
        edits = folded(request.decision.headers, self._metrics.drop_header_edit)
        request.headers = with_edits(request.headers, edits)
        left = _distinct(request.decision.endpoints)
        if request.decision.alternatives:
            left += self._alternatives(request)
        if not left:
            raise Refusal(502, "The decision names no endpoint.", type=SERVER_ERROR, code="no_endpoint")
        following: ChosenEndpoint | None = left.pop(0)
        failure: EndpointFailed | None = None
        while following is not None:
            endpoint = following
            later = await self._attempt(request, endpoint, replaceable=bool(left))
            if later is None:
                return
            if final(later):
                left.clear()
            following = left.pop(0) if left and (is_external(left[0]) or self._budget.spend()) else None
            self._tell_failure(request.exchange, later, following)
            # What a fallback has no word for isn't why the request failed.
            failure = later if failure is None or later.outcome != UNSUPPORTED else failure
        raise refusal_of(failure) or _unanswered(failure, len(request.exchange.attempts))

    def _alternatives(self, request: Outgoing) -> list[ChosenEndpoint]:
        """An endpoint for each other model that may serve."""

        def avoided(worker: str) -> bool:
            return self._load.avoided(worker, time.monotonic())

        state = EngineState(self._load.open_on, avoided)
        found = (elsewhere(request.policy.config, self._pools, each, state) for each in request.decision.alternatives)
        return [endpoint for endpoint in found if endpoint is not None]

    async def _attempt(
        self, request: Outgoing, endpoint: ChosenEndpoint, *, replaceable: bool
    ) -> EndpointFailed | None:
        """Have one endpoint answer; the failure when it didn't."""
        exchange, worker = request.exchange, endpoint.worker
        exchange.tries(worker, endpoint.target)
        if not endpoint.url:
            return await self._ask_provider(request, endpoint)
        sent_at = time.monotonic()
        span = self._tracing.begin("engine", request.traceparent, worker=worker)
        self._load.began(worker)
        problem: str | None = "aborted"
        try:
            try:
                call = _call(request, endpoint, span.traceparent, replaceable=replaceable)
                engine = await self._engines.send(call, request.policy.engine)
            except EndpointFailed as failure:
                problem = failure.outcome
                exchange.attempted(worker, failure.outcome, failure.status, time.monotonic() - sent_at)
                return failure
            try:
                await self._relay(request, endpoint, engine, sent_at)
            finally:
                self._engines.release(call, engine)
            problem = None
        finally:
            self._load.ended(worker)
            span.end(problem)
        return None

    async def _ask_provider(self, request: Outgoing, endpoint: ChosenEndpoint) -> EndpointFailed | None:
        """Have a provider answer; the failure when it didn't."""
        exchange, decision = request.exchange, request.decision
        target = endpoint.target or decision.target
        sent_at = time.monotonic()
        span = self._tracing.begin("provider", request.traceparent, worker=endpoint.worker, model=target.model)
        problem: str | None = "aborted"
        try:
            try:
                body = edited_body(request.body, outward(decision.body), target.model)
                answer = await self._providers.ask(request.policy, exchange, target, decision.model, body)
            except EndpointFailed as failure:
                problem = failure.outcome
                took_s = time.monotonic() - sent_at
                exchange.attempted(endpoint.worker, failure.outcome, failure.status, took_s, reason=failure.detail)
                exchange.limited(*told(failure))
                return failure
            try:
                await self._relay(request, endpoint, answer, sent_at)
            finally:
                answer.close()
                exchange.usage = answer.usage
                exchange.limited(*told(answer))
            problem = None
        finally:
            span.end(problem)
        return None

    async def _relay(self, request: Outgoing, endpoint: ChosenEndpoint, engine: Answering, sent_at: float) -> None:
        exchange, decision, client = request.exchange, request.decision, request.client
        now = exchange.first_byte_at = time.monotonic()
        exchange.stream = is_stream(engine.headers)
        if exchange.stream:
            self._announcer.started(exchange, endpoint.worker, now - sent_at)
        headers = self._rules.pass_on(engine.headers)
        headers.append((b"x-pointsman-level", decision.level.encode("ascii", "replace")))
        if self._tell_endpoint:
            headers.append((b"x-pointsman-endpoint", endpoint.worker.encode("ascii", "replace")))
        target = endpoint.target or decision.target
        name = renaming(target.model, decision.model)
        if name is not None:
            headers += chosen_model(request.policy.prices, target, decision.model)
        usage = exchange.tail = named(exchange.api).usage()
        relay = relay_stream if exchange.stream else relay_document
        rewriting = without_unasked_usage(decision.body, name) if exchange.stream else name
        outcome = "answered"
        try:
            await relay(engine, client, headers, usage, rewriting)
            exchange.end("ok" if engine.status < 500 else "engine_error", engine.status)
        except AnswerCutOff as cut:
            outcome = "cut_off"
            if self._load.failed(endpoint.worker, time.monotonic()):
                _log.warning("answer_cut_off", request_id=exchange.request_id, worker=endpoint.worker, reason=str(cut))
            await _end_cut_off(exchange, client, engine.status, str(cut))
        finally:
            exchange.attempted(endpoint.worker, outcome, engine.status, time.monotonic() - sent_at)

    def _tell_failure(self, exchange: Exchange, failure: EndpointFailed, following: ChosenEndpoint | None) -> None:
        worker = exchange.attempts[-1].worker
        next_worker = following.worker if following else None
        self._metrics.failed_attempts[failure.outcome] += 1
        snapshot = self._pools.get(exchange.pool)
        views = snapshot.workers if snapshot else ()
        boot_id = next((view.boot_id for view in views if view.worker == worker), "")
        self._announcer.attempt_failed(exchange, boot_id, next_worker)
        # One line when an engine begins to fail; the events have every request.
        if self._load.failed(worker, time.monotonic()):
            _log.warning(
                "attempt_failed",
                request_id=exchange.request_id,
                worker=worker,
                outcome=failure.outcome,
                reason=failure.detail,
                next_worker=next_worker,
            )


def _distinct(endpoints: Iterable[ChosenEndpoint]) -> list[ChosenEndpoint]:
    found: dict[str, ChosenEndpoint] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.url or f"{endpoint.worker}/{endpoint.target}", endpoint)
    return list(found.values())


def _call(request: Outgoing, endpoint: ChosenEndpoint, traceparent: str | None, *, replaceable: bool) -> Call:
    decision, other = request.decision, endpoint.target
    edits: Sequence[BodyEdit] = decision.body
    if request.tokens is not None and other is None:
        config = request.policy.config
        edits = token_edits(config, decision.target, request.exchange.api, request.body, edits, request.tokens)
    headers = request.headers
    if other is not None:
        retold_headers = with_edits(headers, folded(retold(decision.headers, other)))
        headers = [header for header in retold_headers if header[0] not in OF_ONE_POOL]
    body = edited_body(request.body, edits, None if other is None else other.model)
    origin = origin_of(endpoint.url)
    head = request_head(
        target=origin.path + request.path,
        host=origin.host_header,
        length=len(body),
        headers=headers,
        request_id=request.exchange.request_id,
        traceparent=traceparent,
    )
    return Call(endpoint.worker, origin, head, body, replaceable)


async def _end_cut_off(exchange: Exchange, client: Client, status: int, reason: str) -> None:
    message = f"The engine stopped before its answer was complete; request id {exchange.request_id}."
    if not client.started:
        exchange.end("cut_off", 502, reason, _CUT_OFF)
        await client.refuse(Refusal(502, message, type=SERVER_ERROR, code=_CUT_OFF))
        return
    exchange.end("cut_off", status, reason, _CUT_OFF)
    if exchange.stream:
        await client.fail(named(exchange.api).error_event(message, _CUT_OFF))
    # A document that is partly out can only be left unfinished; the server then closes the connection.


def _unanswered(last: EndpointFailed | None, tried: int) -> Refusal:
    engine, engines = ("The engine", "") if tried == 1 else ("", f"None of the {tried} engines tried")
    if last is not None and (last.outcome == "timeout" or last.status == 504):
        message = f"{engine} did not answer in time." if engine else f"{engines} answered in time."
        return Refusal(504, message, type=SERVER_ERROR, code="engine_timeout")
    if last is not None and last.status == 503:
        message = f"{engine} could not take the request." if engine else f"{engines} could take the request."
        return Refusal(503, message, type=SERVER_ERROR, code="engine_unavailable", retry_after_s=1.0)
    message = f"{engine} could not be reached, or broke off." if engine else f"{engines} could be reached and answered."
    return Refusal(502, message, type=SERVER_ERROR, code="engine_failed")
