"""One stage of the journey: a message in, its successor or a reply out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from pydantic import ValidationError

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import HeaderEdit, Journey, PreprocessRequest, StageReport
from pointsman_contracts.journey import Stage as StageEntry
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection
from pointsman_contracts.response import Usage
from pointsman_contracts.services import STAGES
from pointsman_core.refusal import Refusal
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.errors import BusError, MessageTooLarge, PayloadTooLarge
from pointsman_runtime.bus.mailbox import Delivery, Tally
from pointsman_runtime.journey import elsewhere
from pointsman_runtime.journey.routing_slip import in_shadow, shadowed, skipped, with_memos
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Span, sampled

if TYPE_CHECKING:
    from pointsman_runtime.bus.bus import Bus

Outcome = Journey | Decision | Rejection | Parked | Answer | None
"""A journey goes on to its next stage; a reply goes to the edge; None: the handler finishes later."""
_SENT: Final = (Journey, Decision, Rejection, Parked, Answer)

M = TypeVar("M", PreprocessRequest, Journey)

_log = Log("stage")


class Hop(Generic[M]):
    """One message at one stage: what the handler gets beside the message, and how it goes on."""

    __slots__ = ("_bus", "_span", "_started", "body", "message", "reply_to", "traceparent")

    def __init__(
        self,
        bus: "Bus",
        message: M,
        body: memoryview,
        reply_to: str,
        traceparent: str | None,
        span: Span | None = None,
    ) -> None:
        self._bus = bus
        self._started = time.perf_counter()
        self.message = message
        self.body = body
        """The raw request body, at the preprocessor; empty elsewhere."""
        self.reply_to = reply_to
        """The edge's inbox."""
        self.traceparent = traceparent
        self._span = span

    def report(self, *, note: str | None = None, outcome: str = "passed") -> StageReport:
        """This stage's entry for the trail, with the time since the message was taken in hand."""
        identity = self._bus.process
        return StageReport(
            stage=identity.service,
            instance=identity.instance,
            outcome=outcome,
            took_ms=round((time.perf_counter() - self._started) * 1000, 3),
            note=note,
        )

    def advance(self, *, note: str | None = None, **changes: Any) -> Journey:
        """The journey with this stage done: off the itinerary, on the trail, with `changes` of its fields."""
        journey = cast("Journey", self.message)
        changes.setdefault("itinerary", journey.itinerary[1:])
        changes["trail"] = (*changes.get("trail", journey.trail), self.report(note=note))
        return journey.model_copy(update=changes)

    def reject(
        self,
        status: int,
        message: str,
        *,
        type: str = "server_error",  # noqa: A002 - OpenAI's name
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        dropped_reason: str | None = None,
        answer_headers: tuple[HeaderEdit, ...] = (),
        identity: Identity | None = None,
        model: str | None = None,
    ) -> Rejection:
        """The end of this request at this stage. `message` is for the client and never quotes the prompt.
        `answer_headers`: those of the error; without any the journey's. `identity` and `model`: the client's, before
        there is a journey that says them."""
        origin = self.message
        journey = origin if isinstance(origin, Journey) else None
        return Rejection(
            request_id=origin.request_id,
            attempt=origin.attempt,
            stage=self._bus.process.service,
            status=status,
            type=type,
            code=code,
            message=message,
            param=param,
            retry_after_s=retry_after_s,
            dropped_reason=dropped_reason,
            profile=journey.profile if journey else None,
            model=journey.model if journey else model,
            target=journey.target if journey else None,
            answer_headers=answer_headers or (journey.answer_headers if journey else ()),
            identity=Identity.of(journey.request.attributes) if journey else identity,
            trail=(*(journey.trail if journey else ()), self.report(outcome="rejected")),
        )

    def refuse(
        self,
        refusal: Refusal,
        answer_headers: tuple[HeaderEdit, ...] = (),
        identity: Identity | None = None,
        model: str | None = None,
    ) -> Rejection:
        """The same, of what the domain refused."""
        return self.reject(
            refusal.status,
            refusal.message,
            type=refusal.type,
            code=refusal.code,
            param=refusal.param,
            retry_after_s=refusal.retry_after_s,
            dropped_reason=refusal.dropped_reason,
            answer_headers=answer_headers,
            identity=identity,
            model=model,
        )

    def answer(
        self,
        body: bytes,
        *,
        content_type: str = "application/json",
        status: int = 200,
        named: str | None = None,
        usage: Usage | None = None,
        saved: Usage | None = None,
        response: tuple[StageEntry, ...] | None = None,
        answer_headers: tuple[HeaderEdit, ...] = (),
        note: str | None = None,
    ) -> Answer:
        """The end of this request at this stage, with an answer. The arguments are `Answer`'s fields; `response` None:
        what the profile wants on the way back. `answer_headers` come after the journey's."""
        journey = cast("Journey", self.message)
        return Answer(
            request_id=journey.request_id,
            attempt=journey.attempt,
            stage=self._bus.process.service,
            status=status,
            content_type=content_type,
            named=named,
            usage=usage or Usage(),
            saved=saved,
            answer_headers=(*journey.answer_headers, *answer_headers),
            response=journey.response if response is None else response,
            model=journey.model,
            profile=journey.profile,
            target=journey.target,
            identity=Identity.of(journey.request.attributes),
            level=journey.level,
            reasons=journey.reasons,
            trail=(*journey.trail, self.report(outcome="answered", note=note)),
            body=body,
        )

    def park(self, reason: str, held_ms: int | None = None) -> Parked:
        """Tells the edge that this instance holds the request on purpose, for so long at most; finish it later."""
        return Parked(
            request_id=self.message.request_id,
            attempt=self.message.attempt,
            stage=self._bus.process.service,
            instance=self._bus.process.instance,
            reason=reason,
            held_ms=held_ms,
        )

    def finish(self, outcome: Outcome) -> None:
        """Send the outcome on its way. The runtime does this with what a handler returns; a handler that
        parked a request does it itself, later."""
        if outcome is None:
            return
        # Whoever asked a custom stage sees to that itself.
        own = self._bus.process.service in STAGES
        if own and isinstance(self.message, Journey) and in_shadow(self.message) and not isinstance(outcome, Parked):
            outcome = self._shadowed(self.message, outcome)
        elif isinstance(outcome, Rejection):
            outcome = self._elsewhere(outcome) or outcome
        if self._span is not None and not isinstance(outcome, Parked):
            self._span.end(
                outcome.message if isinstance(outcome, Rejection) else None,
                outcome=type(outcome).__name__.lower(),
            )
        try:
            # A custom stage was asked, and answers its asker.
            if isinstance(outcome, Journey) and own:
                self._bus.forward(outcome, self.reply_to, self.traceparent)
            else:
                self._bus.reply(self.reply_to, outcome, self.traceparent)
        except MessageTooLarge as error:
            _log.error("journey_too_large", error, request_id=self.message.request_id)
            self.finish(
                self.reject(500, f"The request grew beyond {error.limit} bytes of facts.", code="journey_too_large")
            )
        except PayloadTooLarge as error:
            _log.error("outcome_too_large", error, request_id=self.message.request_id)
            text = f"{self._bus.process.service} has {error.size} bytes to say; the gateway's bus takes {error.limit}."
            self.finish(self.reject(500, text, code="answer_too_large"))
        except BusError as error:
            # Nothing can be sent, the edge's answer included; the edge re-sends or gives up by itself.
            _log.error("unsent", error, request_id=self.message.request_id)

    def _shadowed(self, journey: Journey, outcome: "Journey | Decision | Rejection | Answer") -> Journey:
        """The journey as it goes on behind a stage in shadow."""
        if isinstance(outcome, Rejection):
            note = f"{outcome.status} {outcome.code or outcome.type}"
            return shadowed(journey, "rejected", self.report(note=note))
        if isinstance(outcome, Journey):
            own = outcome.trail[len(journey.trail) :]
            if own and own[-1].outcome == "skipped":
                return skipped(journey, own[-1].instance, own[-1].note or "")
            return shadowed(with_memos(journey, outcome.response), "passed", own[-1] if own else self.report())
        note = outcome.trail[-1].note if isinstance(outcome, Answer) else None
        return shadowed(journey, "answered", self.report(note=note))

    def _elsewhere(self, rejection: Rejection) -> Journey | None:
        """The journey to the next model of a request that a pool has no room for."""
        journey = self.message
        if not isinstance(journey, Journey) or not journey.alternatives or not rejection.trail:
            return None
        report = rejection.trail[-1].model_copy(update={"note": f"{rejection.status} {rejection.code or ''}".rstrip()})
        return elsewhere.next_model(journey, rejection.status, report)


Handler = Callable[[M, Hop[M]], Outcome | Awaitable[Outcome]]


class Stage(Generic[M]):
    """Decodes, calls the handler, sends what it returns; answers the edge when the handler fails."""

    def __init__(self, bus: "Bus", tally: Tally, message: type[M], handler: Handler[M]) -> None:
        self._bus = bus
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
                self._bus.malformed(self._tally, delivery.subject, delivery.payload, error)
                return None
            traceparent = message_headers.find(headers, message_headers.TRACEPARENT_NAME)
        if sampled(traceparent):
            span = self._bus.tracing.begin(self._bus.process.service, traceparent, request_id=message.request_id)
            hop = Hop(self._bus, message, body, delivery.reply, span.traceparent, span)
        else:
            hop = Hop(self._bus, message, body, delivery.reply, traceparent)
        try:
            outcome = self._handler(message, hop)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the edge must have an answer
            self._failed(hop, error)
            return None
        if outcome is None or isinstance(outcome, _SENT):
            self._finish(hop, outcome)
            return None
        return self._finish_later(hop, outcome)

    async def _finish_later(self, hop: Hop[M], outcome: Awaitable[Outcome]) -> None:
        try:
            async with asyncio.timeout(_timeout_s(hop.message)):
                result = await outcome
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._failed(hop, error)
            return
        self._finish(hop, result)

    def _finish(self, hop: Hop[M], outcome: Outcome) -> None:
        try:
            hop.finish(outcome)
        except Exception as error:  # noqa: BLE001 - what a plugin put into it may be nothing that JSON has a word for
            self._failed(hop, error)
        else:
            self._tally.handled += 1

    def _failed(self, hop: Hop[M], error: Exception) -> None:
        self._tally.failed += 1
        message = hop.message
        service = self._bus.process.service
        late = isinstance(error, TimeoutError)
        _log.error("handler_too_slow" if late else "handler_failed", error, request_id=message.request_id)
        if isinstance(message, Journey) and message.itinerary and message.itinerary[0].on_error != "deny":
            reason = f"{service} was too slow" if late else f"{service} failed"
            hop.finish(skipped(message, self._bus.process.instance, reason))
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
