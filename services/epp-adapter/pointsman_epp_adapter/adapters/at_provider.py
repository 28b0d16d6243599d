"""A request that Envoy sends to a provider: its answer, put in the words of the client's API as it passes."""

import time
from typing import Final

from pointsman_apis import named
from pointsman_apis.errors import SERVER_ERROR
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.way_back import WayBack
from pointsman_edge.sending.chosen_model import chosen_model
from pointsman_edge.telling.exchange import Exchange
from pointsman_epp_adapter.adapters import refused_by_envoy, wire
from pointsman_epp_adapter.adapters.desk import Desk
from pointsman_epp_adapter.adapters.provider_way import Sent
from pointsman_epp_adapter.adapters.reviewed_answer import ReviewedAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, ResponseHead, Trailers
from pointsman_epp_adapter.domain.envoys_answers import FAILED
from pointsman_epp_adapter.domain.mutation import Header, header_changes
from pointsman_providers.errors import BrokenAnswer, attempt_outcome, explained
from pointsman_providers.exchange import STREAMS
from pointsman_providers.exchange import Stream as ProviderStream
from pointsman_providers.limits import Limits, limits

_BROKEN: Final = "Envoy ended the exchange before the answer was: the client left, or the provider broke off"


class AtProvider:
    """One request that was sent on, until its answer has ended."""

    def __init__(self, desk: Desk, exchange: Exchange, sent: Sent, mode: BodyMode, way_back: WayBack) -> None:
        """`mode` is how Envoy sends answers, `way_back` what they pass; one without stages lets them."""
        self._desk = desk
        self._exchange = exchange
        self._sent = sent
        self._provider = provider = sent.provider
        self._call = sent.call
        self._mode = mode
        self._duplex = mode is BodyMode.FULL_DUPLEX_STREAMED
        self._way_back = way_back
        decision = exchange.decision
        self._model = [] if decision is None else chosen_model(desk.policy().prices, decision.target, decision.model)
        self._reviewed: ReviewedAnswer | None = None
        self._events: ProviderStream | None = None
        self._pieces: list[bytes] = []
        self._status = 0
        self._told = Limits()
        self._started = False
        self._failed = ""
        self._sent_at = time.monotonic()
        exchange.tail = self._tail = named(exchange.api).usage()
        exchange.tries(provider.name, None)

    async def run(self, stream: Stream) -> None:
        """Until the answer has ended. Raises EnvoyGone, and Refusal when the client gets an error instead of it."""
        while self._exchange.outcome is None or (self._reviewed is not None and self._reviewed.withholds):
            event = await stream.next()
            if isinstance(event, ResponseHead):
                await self._head(event, stream)
            elif isinstance(event, Body) and not event.of_request:
                await self._piece(event.data, stream, last=event.end, end=event.end)
            elif isinstance(event, Trailers):
                if not event.of_request:
                    await self._rest(stream)
                await stream.write(CONTINUE["request_trailers" if event.of_request else "response_trailers"])

    def close(self) -> None:
        """The stream is over, however."""
        exchange = self._exchange
        if exchange.outcome is None:
            exchange.end("client_gone", self._status, _BROKEN)
        if exchange.worker is None:
            return
        exchange.usage = self._call.answer.usage
        if self._reviewed is not None:
            exchange.bytes_out = self._reviewed.bytes_out
        outcome = self._failed or ("cut_off" if exchange.outcome == "client_gone" else "answered")
        took_s = time.monotonic() - self._sent_at
        exchange.attempted(self._provider.name, outcome, self._status or None, took_s)
        pause = self._told.retry_after_s
        if outcome != "cut_off":
            status = None if self._failed in ("timeout", "refused") else self._status or None
            self._desk.providers.answered(self._sent, status, pause)
        exchange.limited(None if pause is None else round((time.time() + pause) * 1000), self._told.remaining)

    async def _head(self, head: ResponseHead, stream: Stream) -> None:
        named = {name.decode("ascii", "replace"): value.decode("latin-1") for name, value in head.headers}
        status = named.get(":status", "")
        self._status = int(status) if status.isdigit() else 0
        if head.envoys_own and self._status < FAILED:
            await refused_by_envoy.pass_on(self._desk, self._exchange, head, stream, self._mode, self._own())
            return
        if head.envoys_own:
            outcome, status = ("timeout", 504) if self._status == 504 else ("refused", 502)
            raise self._refused(outcome, explained(self._provider.name, status, b""))
        self._told = limits(self._status, named, time.time())
        if not 200 <= self._status < 300:
            if head.end:
                raise self._refusal(b"")
            if not self._duplex:
                await stream.write(wire.response_head(header_changes([], []), BodyMode.BUFFERED))
            return
        if head.end:
            raise self._broken("the answer is empty")
        streamed = named.get("content-type", "").startswith(STREAMS)
        self._exchange.stream = streamed
        if streamed:
            self._events = self._call.answer.stream()
        kind = b"text/event-stream; charset=utf-8" if streamed else b"application/json"
        mode = self._mode
        if not self._duplex:
            mode = BodyMode.STREAMED if streamed and not self._way_back.needs_all else BodyMode.BUFFERED
        self._reviewed = ReviewedAnswer(self._way_back, self._exchange, stream, mode, self._ended)
        await self._reviewed.begin(self._status, head.headers, [(b"content-type", kind), *self._own()])

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
            now = self._exchange.first_byte_at = time.monotonic()
            self._desk.announcer.started(self._exchange, self._provider.name, now - self._sent_at)
        try:
            data = self._translated(data, last=last)
        except BrokenAnswer as broken:
            refusal = self._broken(str(broken))
            code = refusal.code or SERVER_ERROR
            if not await reviewed.fail(named(self._exchange.api).error_event(refusal.message, code), last=last):
                raise refusal from None
            return
        self._tail.feed(data)
        await reviewed.piece(data, last=last, end=end)

    async def _rest(self, stream: Stream) -> None:
        """What was held of an answer that ends with trailers. Raises Refusal when Envoy takes none of it any more."""
        if self._duplex or self._reviewed is None:
            await self._piece(b"", stream, last=True, end=False)
            return
        try:
            data = self._translated(b"", last=True)
        except BrokenAnswer as broken:
            raise self._broken(str(broken)) from None
        if data or self._way_back.blocks:
            raise self._broken("trailers ended an answer that was held here; in full duplex it would have passed")
        self._ended()

    def _translated(self, data: bytes, *, last: bool) -> bytes:
        """What of it the client can have now. Raises BrokenAnswer."""
        if self._events is not None:
            if self._reviewed is not None and self._reviewed.withholds:
                return b""
            return self._events.feed(data) + (self._events.end() if last else b"")
        self._pieces.append(data)
        return self._call.answer.whole(b"".join(self._pieces)) if last else b""

    def _refusal(self, body: bytes) -> Refusal:
        """The provider's error, in words for the client."""
        status = self._status
        refusal = explained(self._provider.name, status, body, self._told.retry_after_s)
        return self._refused(attempt_outcome(status), refusal)

    def _broken(self, why: str) -> Refusal:
        self._failed = "failed"
        refusal = explained(self._provider.name, 502, b"")
        self._exchange.end("cut_off", refusal.status, why, refusal.told_code)
        return refusal

    def _refused(self, outcome: str, refusal: Refusal) -> Refusal:
        self._failed = outcome
        self._exchange.refused(refusal)
        return refusal

    def _own(self) -> list[Header]:
        exchange = self._exchange
        return [
            (b"x-request-id", exchange.request_id.encode("ascii")),
            (b"x-pointsman-level", exchange.level.encode("ascii", "replace")),
            *self._model,
        ]

    def _ended(self) -> None:
        self._exchange.end("ok", self._status)
