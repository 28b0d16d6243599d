"""One request, from its first byte to its last event."""

import asyncio
import time
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass
from typing import Final, cast

from pointsman_apis import named
from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.paths import METHOD
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Answer, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.rejected import refusal_of
from pointsman_edge.deciding.static_choice import Closed
from pointsman_edge.reviewing.way_back import Withheld
from pointsman_edge.reviewing.ways_back import WaysBack
from pointsman_edge.sending.engine_tokens import still_its_own
from pointsman_edge.sending.routing_answer import OUTCOME, Place, routing_answer
from pointsman_edge.taking_in.body_size import check_length
from pointsman_edge.taking_in.held_bodies import HeldBodies
from pointsman_edge.taking_in.request_headers import HeaderRules, check_content
from pointsman_edge.taking_in.request_id import RequestIds
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_edge.telling.announcer import Announcer
from pointsman_edge.telling.exchange import CLIENT_GONE, Exchange
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_edge.telling.settling import settle
from pointsman_frontend.adapters.before_client import BeforeClient
from pointsman_frontend.adapters.client import Client
from pointsman_frontend.adapters.forwarder import Forwarder, Outgoing
from pointsman_frontend.adapters.given_answer import pass_on
from pointsman_frontend.adapters.leash import Leash
from pointsman_frontend.adapters.own_worker import OwnWorker
from pointsman_frontend.adapters.request_body import ClientGone, read_body
from pointsman_runtime.service.http_server import Receive, Scope, Send
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Tracing

LAST_WORD_S: Final = 1.0
"""How long an aborted request may take to tell its client why."""

_log = Log("edge")


@dataclass(frozen=True, slots=True)
class Intake:
    """How requests are taken in."""

    edge: str
    """Instance of this edge."""
    policy: Callable[[], EdgePolicy]
    """The current revision's."""
    headers: HeaderRules
    trusted: TrustedProxies
    body_limit_s: float
    """How long a request's body may take to arrive."""
    tracing: Tracing


class Proxy:
    """Serves the routes that lead to engines. Whatever happens to a request, `ResponseCompleted` says so once."""

    def __init__(
        self,
        intake: Intake,
        decider: OwnWorker,
        forwarder: Forwarder,
        ways_back: WaysBack,
        bodies: HeldBodies,
        announcer: Announcer,
        metrics: EdgeMetrics,
    ) -> None:
        self._intake = intake
        self._decider = decider
        self._forwarder = forwarder
        self._ways_back = ways_back
        self._before = BeforeClient(ways_back)
        self._bodies = bodies
        self._announcer = announcer
        self._metrics = metrics
        self._ids = RequestIds()
        self._open: dict[str, Leash] = {}
        self._last_one_ended: asyncio.Event | None = None

    @property
    def ids(self) -> RequestIds:
        """For requests that don't come this way."""
        return self._ids

    @property
    def open_requests(self) -> Container[str]:
        """Ids of the requests that haven't ended."""
        return self._open

    async def serve(self, api: str, scope: Scope, receive: Receive, send: Send, refusal: Refusal | None = None) -> None:
        """Answer one POST to the route of `api`; or with `refusal` what no route takes, which is told like any other
        request that is refused."""
        policy = self._intake.policy()
        request_id = self._ids.of(scope["headers"], self._open)
        client = Client(send, request_id, api)
        now = time.monotonic()
        exchange = Exchange(request_id, api, now)
        task = cast("asyncio.Task[object]", asyncio.current_task())
        leash = Leash(task, now + policy.limits.request_timeout)
        self._open[request_id] = leash
        self._metrics.open += 1
        try:
            await self._answer(exchange, policy, scope, receive, client, leash, refusal)
        except Withheld as withheld:
            leash.let_go()
            exchange.end("blocked", client.status or withheld.status, withheld.message, withheld.told_code)
            if not client.started:
                await client.refuse(withheld)
        except Refusal as refusal:
            leash.let_go()
            self._refused(exchange, refusal)
            await self._before.refuse(client, refusal, policy, exchange, leash)
        except ClientGone:
            exchange.end("client_gone", CLIENT_GONE)
        except asyncio.CancelledError:
            task.uncancel()
            await self._aborted(exchange, client, leash)
        except Exception as error:  # noqa: BLE001 - the client must have an answer and the request its event
            leash.let_go()
            _log.error("request_failed", error, request_id=request_id)
            refusal = Refusal(
                500, f"Internal error; request id {request_id}.", type=SERVER_ERROR, code="internal_error"
            )
            self._refused(exchange, refusal, client.status)
            if not client.started:
                await self._before.refuse(client, refusal, policy, exchange, leash)
        finally:
            leash.let_go()
            if leash.span is not None:
                leash.span.end(
                    None if exchange.outcome == "ok" else exchange.outcome, status=exchange.status, level=exchange.level
                )
            exchange.bytes_out = client.bytes_out
            del self._open[request_id]
            self._metrics.open -= 1
            settle(exchange, policy.prices, self._metrics)
            self._metrics.completed(exchange)
            self._announcer.completed(exchange, time.monotonic())
            self._ways_back.after(policy, exchange, leash)
            if self._last_one_ended is not None and not self._open:
                self._last_one_ended.set()

    def sweep(self) -> None:
        """End what takes too long. Called a few times a second; a timer for each request costs more."""
        now = time.monotonic()
        for leash in list(self._open.values()):
            if leash.due < now:
                leash.pull("timeout")

    async def drained(self) -> None:
        """Wait until no request is open, for as long as cancelled ones need for their last words."""
        self._last_one_ended = asyncio.Event()
        if self._open:
            try:
                async with asyncio.timeout(2 * LAST_WORD_S):
                    await self._last_one_ended.wait()
            except TimeoutError:
                _log.warning("requests_left_open", count=len(self._open))

    async def _answer(
        self,
        exchange: Exchange,
        policy: EdgePolicy,
        scope: Scope,
        receive: Receive,
        client: Client,
        leash: Leash,
        refusal: Refusal | None,
    ) -> None:
        if refusal is not None:
            raise refusal
        limits = policy.limits
        intake = self._intake
        peer: str = scope["client"][0] if scope.get("client") else ""
        headers = intake.headers.read(scope["headers"], trusted=intake.trusted.include(peer))
        check_content(headers)
        check_length(headers.content_length, limits.max_body)
        body = await read_body(receive, limits.max_body, intake.body_limit_s)
        held = leash.held = self._bodies.hold(exchange.request_id, body)
        leash.watch(scope)
        began = exchange.received_at
        exchange.received_at = time.monotonic()
        received_ms = time.time_ns() // 1_000_000
        left_s = limits.request_timeout - (exchange.received_at - began)
        span = leash.span = intake.tracing.begin(
            "request", intake.tracing.adopt(headers.traceparent), request_id=exchange.request_id, api=exchange.api
        )
        request = PreprocessRequest(
            request_id=exchange.request_id,
            edge=intake.edge,
            received_ms=received_ms,
            deadline_ms=received_ms + round(left_s * 1000),
            revision=policy.revision,
            method=METHOD,
            path=scope["path"],
            headers=headers.stages,
            client=intake.trusted.client_of(peer, headers.forwarded_for),
        )
        reply = await self._decider.decide(request, body, policy, span.traceparent)
        now = time.monotonic()
        client.answer_headers = reply.answer_headers
        if isinstance(reply, Rejection):
            exchange.rejected_by(reply, now)
            raise refusal_of(reply)
        if isinstance(reply, Answer):
            exchange.answered_by(reply, now)
            self._announcer.answered(exchange, reply)
            await pass_on(reply, self._before.stand(client, reply, policy, exchange, leash), exchange)
            return
        exchange.decided(reply, now)
        if headers.routing:
            places = [Place(each.worker, each.url) for each in reply.endpoints]
            tokens = still_its_own(policy.config, reply.target, reply.body, held.tokens)
            told, document = routing_answer(reply, places, tokens)
            exchange.end(OUTCOME, 200)
            await client.answer(200, told, document)
            return
        await self._forwarder.forward(
            Outgoing(
                exchange=exchange,
                decision=reply,
                client=self._before.stand(client, reply, policy, exchange, leash),
                policy=policy,
                path=scope["path"].encode("ascii"),
                headers=headers.engine,
                body=held.current,
                tokens=held.tokens,
                traceparent=span.traceparent,
            )
        )

    def _refused(self, exchange: Exchange, refusal: Refusal, sent: int | None = None) -> None:
        if isinstance(refusal, Closed) or refusal.code == STAGE_UNAVAILABLE:
            exchange.level = "closed"
        if exchange.attempts:
            exchange.refused(refusal, sent)
            return
        exchange.end("rejected", refusal.status, refusal.detail, refusal.told_code)
        self._announcer.rejected(exchange, refusal)

    async def _aborted(self, exchange: Exchange, client: Client, leash: Leash) -> None:
        # Without a reason of our own it is the server, which ends what is left when its patience is over.
        reason = leash.reason or "shutdown"
        leash.let_go()
        if reason == "client_gone":
            exchange.end("client_gone", client.status or CLIENT_GONE)
            return
        if reason == "timeout":
            refusal = Refusal(504, "The request took too long.", type=SERVER_ERROR, code="request_timeout")
        else:
            refusal = Closed(
                "The gateway is shutting down; try again.", "shutting_down", dropped_reason="rejected-shutting-down"
            )
        exchange.end(reason, client.status or refusal.status, refusal.message, refusal.told_code)
        if not client.started:
            await _briefly(client.refuse(refusal))
        elif exchange.stream and not client.ended:
            await _briefly(client.end(named(exchange.api).error_event(refusal.message, refusal.code or reason)))


async def _briefly(last_word: Coroutine[object, object, None]) -> None:
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await last_word
    except TimeoutError:
        return  # it doesn't read; the connection ends without the word
