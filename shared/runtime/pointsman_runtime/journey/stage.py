"""One stage of a service: receives messages, calls the handler, sends the outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic

from pydantic import ValidationError

from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.mailbox import Delivery
from pointsman_runtime.journey.hop import SENT, Hop, M, Onward, Outcome
from pointsman_runtime.journey.routing_slip import skipped
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tallies, Tally
from pointsman_runtime.telling.telemetry import Tracing, sampled

_log = Log("stage")

Handler = Callable[[M, Hop[M]], Outcome | Awaitable[Outcome]]


class StageRunner(Generic[M]):
    """Decodes, calls the handler, sends what it returns; answers the edge when the handler fails."""

    def __init__(
        self,
        onward: Onward,
        tracing: Tracing,
        tallies: Tallies,
        tally: Tally,
        message: type[M],
        handler: Handler[M],
    ) -> None:
        self._onward = onward
        self._process = onward.process
        self._tracing = tracing
        self._tallies = tallies
        self._tally = tally
        self._message = message
        self._handler = handler
        self._has_body: bool = message is PreprocessRequest

    def handle(self, delivery: Delivery) -> Coroutine[object, object, None] | None:
        """Handle one message; returns the rest as a coroutine when the handler is asynchronous."""
        message, body, traceparent = delivery.message, delivery.body, delivery.traceparent
        if not isinstance(message, self._message):
            headers = delivery.headers
            deadline = message_headers.deadline_ms(headers)
            if deadline is not None and time.time_ns() // 1_000_000 > deadline:
                self._tally.dead += 1
                return None
            document = delivery.payload
            if self._has_body:
                end = document.find(b"\n")
                if end >= 0:
                    body = memoryview(document)[end + 1 :]
                    document = document[:end]
            try:
                message = self._message.decode(document)
            except ValidationError as error:
                self._tallies.malformed(self._tally, delivery.subject, delivery.payload, error)
                return None
            traceparent = message_headers.find(headers, message_headers.TRACEPARENT_NAME)
        if traceparent is not None and sampled(traceparent):
            span = self._tracing.begin(self._process.service, traceparent, request_id=message.request_id)
            hop = Hop(self._onward, message, body, delivery.reply, span.traceparent, span)
        else:
            hop = Hop(self._onward, message, body, delivery.reply, traceparent)
        try:
            outcome = self._handler(message, hop)
            if outcome is not None and not isinstance(outcome, SENT):
                return self._finish_later(hop, outcome)
            hop.finish(outcome)
        # A plugin may raise anything, and return what JSON has no word for; the edge must have an answer.
        except Exception as error:  # noqa: BLE001
            self._failed(hop, error)
        else:
            self._tally.handled += 1
        return None

    async def _finish_later(self, hop: Hop[M], outcome: Awaitable[Outcome]) -> None:
        try:
            async with asyncio.timeout(_timeout_s(hop.message)):
                result = await outcome
            hop.finish(result)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._failed(hop, error)
        else:
            self._tally.handled += 1

    def _failed(self, hop: Hop[M], error: Exception) -> None:
        self._tally.failed += 1
        message = hop.message
        service = self._process.service
        late = isinstance(error, TimeoutError)
        _log.error("handler_too_slow" if late else "handler_failed", error, request_id=message.request_id)
        if isinstance(message, Journey) and message.itinerary and message.itinerary[0].on_error != "deny":
            reason = f"{service} was too slow" if late else f"{service} failed"
            hop.finish(skipped(message, self._process.instance, reason))
        elif late:
            text = f"{service} did not finish in time; request id {message.request_id}."
            hop.finish(hop.reject(504, text, code="stage_timeout"))
        else:
            text = f"Internal error in {service}; request id {message.request_id}."
            hop.finish(hop.reject(500, text, code="internal_error"))


def _timeout_s(message: PreprocessRequest | Journey) -> float | None:
    if isinstance(message, Journey) and message.itinerary and message.itinerary[0].timeout_ms is not None:
        return message.itinerary[0].timeout_ms / 1000
    return None
