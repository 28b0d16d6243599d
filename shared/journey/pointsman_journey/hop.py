"""One message at one stage: its context for the handler, and the ways to continue."""

import time
from typing import Final, Generic, Protocol, TypeVar, Unpack, cast

from msgspec.structs import replace

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import (
    HeaderEdit,
    Journey,
    JourneyChanges,
    PreprocessRequest,
    Stage,
    StageReport,
)
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection
from pointsman_contracts.response import Usage
from pointsman_core.refusal import Refusal
from pointsman_core.service_level import promise_missed
from pointsman_journey import elsewhere
from pointsman_journey.routing_slip import SHADOW, shadowed, skipped, with_memos
from pointsman_runtime.bus.edge_clocks import EdgeClocks
from pointsman_runtime.bus.errors import BusError, MessageTooLarge, PayloadTooLarge
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.telemetry import Span

Reply = Decision | Rejection | Parked | Answer
"""The answers of a stage to an edge."""
Outcome = Journey | Reply | None
"""A journey goes on to its next stage; a reply goes to the edge; None: the handler finishes later."""
SENT: Final = (Journey, Decision, Rejection, Parked, Answer)

M = TypeVar("M", PreprocessRequest, Journey)

_log = Log("stage")


class ReplyPath(Protocol):
    """A request of this process that may have to wait for its reply."""

    def inbox(self) -> str:
        """Where the reply goes: the request waits for it from now on."""
        ...


class Onward(Protocol):
    """Takes a stage's outcome: `Journeys` of its service."""

    process: Process
    clocks: EdgeClocks
    custom: bool
    """Whether the service is no stage of the gateway's own: another service asks it, and sends its outcome on."""

    def forward(self, journey: Journey, reply_to: str, traceparent: str | None = None) -> None:
        """Send a journey to its next stage."""
        ...

    def reply(self, reply_to: str, message: Journey | Reply, traceparent: str | None = None) -> None:
        """Answer the edge, or the process that asked a custom stage."""
        ...


class Hop(Generic[M]):
    """One message at one stage: its context for the handler, and the ways to continue. When a handler has returned the
    journey, its hop becomes that of the next stage of this process."""

    __slots__ = ("_reply_to", "body", "message", "onward", "span", "started", "traceparent")

    def __init__(
        self,
        onward: Onward,
        message: M,
        body: bytes | memoryview,
        reply_to: str | ReplyPath,
        traceparent: str | None,
        span: Span | None = None,
    ) -> None:
        self.onward = onward
        self.started = time.perf_counter()
        self.message = message
        self.body = body
        """The raw request body, at the preprocessor; empty elsewhere."""
        self._reply_to = reply_to
        self.traceparent = traceparent
        self.span = span

    @property
    def reply_to(self) -> str:
        """The edge's inbox."""
        to = self._reply_to
        return to if isinstance(to, str) else to.inbox()

    def find_time_left(self, journey: Journey) -> float:
        """Seconds until the journey's deadline, by its edge's clock."""
        return (journey.deadline_ms - self.onward.clocks.tell_time(journey.edge)) / 1000

    def report(self, *, note: str | None = None, outcome: str = "passed") -> StageReport:
        """This stage's entry for the trail, with the time since the message was taken in hand."""
        process = self.onward.process
        # Rounding to a whole number takes a fifth of the time of rounding to three decimals.
        took_ms = round((time.perf_counter() - self.started) * 1e6) / 1e3
        return StageReport(
            stage=process.service,
            instance=process.instance,
            outcome=outcome,
            took_ms=took_ms,
            note=note,
        )

    def advance(self, *, note: str | None = None, **changes: Unpack[JourneyChanges]) -> Journey:
        """The journey with this stage done: off the itinerary, on the trail, with `changes` of its fields."""
        return self.advance_with(changes, note)

    def advance_with(self, changes: JourneyChanges, note: str | None) -> Journey:
        """Like `advance`; `changes` are the caller's no longer."""
        journey: Journey = self.message  # pyright: ignore[reportAssignmentType] - the preprocessor has none to advance
        if "itinerary" not in changes:
            changes["itinerary"] = journey.itinerary[1:]
        changes["trail"] = (*changes.get("trail", journey.trail), self.report(note=note))
        return journey.changed(**changes)

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
            stage=self.onward.process.service,
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
            identity=Identity.from_attributes(journey.request.attributes) if journey else identity,
            trail=(*(journey.trail if journey else ()), self.report(outcome="rejected")),
            promise=promise_missed(journey.request, status) if journey else None,
        )

    def refuse(
        self,
        refusal: Refusal,
        answer_headers: tuple[HeaderEdit, ...] = (),
        identity: Identity | None = None,
        model: str | None = None,
    ) -> Rejection:
        """Like `reject`, for a refusal of the domain."""
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

    def refuse_further(self, journey: Journey, refusal: Refusal) -> Rejection:
        """Like `refuse`, by a processor that ran after this stage's own work: `journey` is as that work left it."""
        rejection = self.refuse(refusal, journey.answer_headers)
        trail = (*journey.trail, rejection.trail[-1])
        return replace(rejection, profile=journey.profile, target=journey.target, trail=trail)

    def answer(
        self,
        body: bytes,
        *,
        content_type: str = "application/json",
        status: int = 200,
        named: str | None = None,
        usage: Usage | None = None,
        saved: Usage | None = None,
        response: tuple[Stage, ...] | None = None,
        answer_headers: tuple[HeaderEdit, ...] = (),
        note: str | None = None,
    ) -> Answer:
        """The end of this request at this stage, with an answer. The arguments are `Answer`'s fields; `response` None:
        what the profile wants on the way back. `answer_headers` come after the journey's."""
        journey = cast("Journey", self.message)
        return Answer(
            request_id=journey.request_id,
            attempt=journey.attempt,
            stage=self.onward.process.service,
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
            identity=Identity.from_attributes(journey.request.attributes),
            level=journey.level,
            reasons=journey.reasons,
            trail=(*journey.trail, self.report(outcome="answered", note=note)),
            body=body,
        )

    def park(self, reason: str, held_ms: int | None = None) -> Parked:
        """Notify the edge that this instance holds the request on purpose, for at most this long; finish it later."""
        return Parked(
            request_id=self.message.request_id,
            attempt=self.message.attempt,
            stage=self.onward.process.service,
            instance=self.onward.process.instance,
            reason=reason,
            held_ms=held_ms,
        )

    def finish(self, outcome: Outcome) -> None:
        """Send the outcome. The runtime does this with the handler's result; a handler that
        parked a request does it itself, later."""
        if outcome is None:
            return
        message, custom = self.message, self.onward.custom
        # The service that asked a custom stage does that itself.
        if (
            not custom
            and isinstance(message, Journey)
            and message.itinerary
            and message.itinerary[0].mode == SHADOW
            and not isinstance(outcome, Parked)
        ):
            outcome = self._shadowed(message, outcome)
        elif isinstance(outcome, Rejection):
            outcome = self._elsewhere(outcome) or outcome
        if self.span is not None and not isinstance(outcome, Parked):
            self.span.end_span(
                outcome.message if isinstance(outcome, Rejection) else None,
                outcome=type(outcome).__name__.lower(),
            )
        try:
            # A custom stage was asked, and answers its asker.
            if isinstance(outcome, Journey) and not custom:
                self.onward.forward(outcome, self.reply_to, self.traceparent)
            else:
                self.onward.reply(self.reply_to, outcome, self.traceparent)
        except MessageTooLarge as error:
            _log.error("journey_too_large", error, request_id=self.message.request_id)
            self.finish(
                self.reject(
                    500,
                    f"The facts about the request exceed {error.limit} bytes, the limit of a message.",
                    code="journey_too_large",
                )
            )
        except PayloadTooLarge as error:
            _log.error("outcome_too_large", error, request_id=self.message.request_id)
            text = f"{self.onward.process.service} produced {error.size} bytes; the bus accepts at most {error.limit}."
            self.finish(self.reject(500, text, code="answer_too_large"))
        except BusError as error:
            # Nothing can be sent, the edge's answer included; the edge re-sends or gives up by itself.
            _log.error("unsent", error, request_id=self.message.request_id)

    def _shadowed(self, journey: Journey, outcome: Journey | Decision | Rejection | Answer) -> Journey:
        """The journey as it continues after a stage in shadow."""
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
        report = rejection.trail[-1].changed(note=f"{rejection.status} {rejection.code or ''}".rstrip())
        return elsewhere.next_model(journey, rejection.status, report)
