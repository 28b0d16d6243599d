"""The stages of a process: each receives messages, calls its handler, and sends the outcome; a hop between two of them
is a call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.reply import Decision
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_contracts.services import STAGES
from pointsman_journey.hop import SENT, Hop, M, Onward, Outcome, ReplyPath
from pointsman_journey.review_stage import ReviewStage
from pointsman_journey.roster import Roster
from pointsman_journey.routing_slip import SHADOW, in_shadow, skipped
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.bus.mailbox import Delivery
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Tracing, sampled

_log = Log("stage")

Handler = Callable[[M, Hop[M]], Outcome | Awaitable[Outcome]]
AnyHop = Hop[PreprocessRequest] | Hop[Journey]

BodyOf = Callable[[str, bool], bytes | None]
"""The body of a request, by its id, as the client sent it (True) or as the engine gets it; None when its edge no longer
holds it."""


class StageRunner:
    """Decodes, calls the handler, sends its result; answers the edge when the handler fails."""

    def __init__(
        self,
        onward: Onward,
        bus: Bus,
        tracing: Tracing,
        stages: Mapping[str, "StageRunner"],
        message: type[M],
        handler: Handler[M],
        *,
        pending: int,
        concurrency: int,
    ) -> None:
        """`stages`: those of this process that take work, by service; the bounds are those of `Bus.make_mailbox`."""
        self.process: Final = onward.process
        service = STAGES.get(self.process.service)
        self.routed: Final = service is not None and bool(service.route)
        """Whether its subject names a pool."""
        self.custom: Final = onward.custom
        self._onward = onward
        self._tracing = tracing
        self._stages = stages
        self._tallies = bus.tallies
        self._clocks = bus.clocks
        self._tally = bus.new_tally(f"stage.{self.process.service}")
        self._message = message
        self._handler = cast("Handler[Journey]", handler)
        self._has_body: bool = message is PreprocessRequest
        self.mailbox: Final = bus.make_mailbox(self._tally, self.handle, pending=pending, concurrency=concurrency)

    def handle(self, delivery: Delivery) -> None:
        """Handle one message of the mailbox."""
        message, body, traceparent = delivery.message, delivery.body, delivery.traceparent
        if not isinstance(message, self._message):
            headers = delivery.headers
            if self._clocks.is_past(message_headers.deadline_ms(headers), message_headers.find_clock(headers)):
                self._tally.dead += 1
                return
            document = delivery.payload
            if self._has_body:
                end = document.find(b"\n")
                if end >= 0:
                    body = memoryview(document)[end + 1 :]
                    document = document[:end]
            try:
                message = self._message.decode(document)
            except MalformedMessage as error:
                self._tallies.count_malformed(self._tally, delivery.subject, delivery.payload, error)
                return
            traceparent = message_headers.find(headers, message_headers.TRACEPARENT_NAME)
        self.run(message, body, delivery.reply, traceparent)

    def run(
        self,
        message: PreprocessRequest | Journey,
        body: bytes | memoryview,
        reply_to: str | ReplyPath,
        traceparent: str | None,
        *,
        straight: bool = False,
    ) -> Decision | None:
        """Handle one message here, and at every following stage of this process that needn't wait.
        `straight`: returns the decision that the request ends with, instead of sending it."""
        stage, stages = self, self._stages
        # Its handler takes messages of this type, the edge's among them.
        journey: Journey = message  # pyright: ignore[reportAssignmentType]
        hop = Hop(self._onward, journey, body, reply_to, traceparent)
        # A custom stage was asked, one in shadow decides nothing, and of a request that is sent again another process
        # takes the next stage.
        hands_on = not (self.custom or message.attempt > 1 or (not self._has_body and in_shadow(journey)))
        if traceparent is not None and sampled(traceparent):
            hop.span = self._tracing.begin_span(self.process.service, traceparent, request_id=message.request_id)
            hop.traceparent = hop.span.traceparent
            hands_on = False
        while True:
            try:
                outcome = stage._handler(journey, hop)
                if isinstance(outcome, Journey):
                    itinerary = outcome.itinerary
                    following = stages.get(itinerary[0].service) if hands_on and itinerary else None
                    if following is not None and following._takes_up(outcome):
                        stage._tally.handled += 1
                        stage, journey = following, outcome
                        hands_on = itinerary[0].mode != SHADOW
                        hop.onward, hop.message, hop.body = stage._onward, journey, b""
                        hop.started = time.perf_counter()
                        continue
                elif straight and hands_on and isinstance(outcome, Decision):
                    stage._tally.handled += 1
                    return outcome
                elif outcome is not None and not isinstance(outcome, SENT):
                    stage.mailbox.run(stage._finish_later(hop, outcome))
                    return None
                hop.finish(outcome)
            # A plugin may raise any error, or return a value that JSON can't express; the edge must get an answer.
            except Exception as error:  # noqa: BLE001
                stage._failed(hop, error)
            else:
                stage._tally.handled += 1
            return None

    def _takes_up(self, journey: Journey) -> bool:
        """Whether the stage takes a journey of this process up at once. Otherwise `Onward.forward` decides."""
        if self.custom or self.mailbox.busy:
            return False
        target = journey.target
        return not self.routed or (target is not None and target.pool is not None and target.provider is None)

    async def _finish_later(self, hop: AnyHop, outcome: Awaitable[Outcome]) -> None:
        try:
            async with asyncio.timeout(_timeout_s(hop.message)):
                result = await outcome
            hop.finish(result)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._failed(hop, error)
        else:
            self._tally.handled += 1

    def _failed(self, hop: AnyHop, error: Exception) -> None:
        self._tally.failed += 1
        message = hop.message
        service = self.process.service
        late = isinstance(error, TimeoutError)
        _log.error("handler_too_slow" if late else "handler_failed", error, request_id=message.request_id)
        if isinstance(message, Journey) and message.itinerary and message.itinerary[0].on_error != "deny":
            reason = f"{service} was too slow" if late else f"{service} failed"
            hop.finish(skipped(message, self.process.instance, reason))
        elif late:
            text = f"{service} did not finish in time; request id {message.request_id}."
            hop.finish(hop.reject(504, text, code="stage_timeout"))
        else:
            text = f"Internal error in {service}; request id {message.request_id}."
            hop.finish(hop.reject(500, text, code="internal_error"))


class ProcessStages:
    """Shared by the services of one process: their stages, the bodies that edges hold, and the peers that they know."""

    def __init__(self, hub: Hub) -> None:
        self.roster: Final = Roster(hub.link, hub.tallies)
        self.stages: Final[dict[str, StageRunner]] = {}
        """Request stages that take work, by service."""
        self.reviewers: Final[dict[str, ReviewStage]] = {}
        """Response stages that take work, by service."""
        self.bodies: Final[dict[str, BodyOf]] = {}
        """Bodies of open requests, by the instance of their edge."""

    def call(
        self,
        service: str,
        message: PreprocessRequest | Journey,
        reply_to: str | ReplyPath,
        traceparent: str | None,
        body: bytes = b"",
        *,
        resent: bool = False,
        straight: bool = False,
    ) -> Decision | bool:
        """Hand a message to a stage of this process. False when no such stage takes work here, or when the message is
        `resent` and another process has one: the stage here may have swallowed it. `straight`: returns a decision that
        is made within this call, instead of sending it to `reply_to`."""
        stage = self.stages.get(service)
        if stage is None or (resent and self._has_others(service, stage.process.instance)):
            return False
        if stage.mailbox.busy:
            inbox = reply_to if isinstance(reply_to, str) else reply_to.inbox()
            return stage.mailbox.hand(
                Delivery(
                    subject="",
                    reply=inbox,
                    headers=b"",
                    payload=b"",
                    message=message,
                    body=body,
                    traceparent=traceparent,
                )
            )
        return stage.run(message, body, reply_to, traceparent, straight=straight) or True

    def call_reviewer(
        self, service: str, review: ResponseReview, inbox: Callable[[], str], traceparent: str | None
    ) -> Verdict | bool:
        """Hand a review to a response stage of this process. False when none takes work here. Returns a verdict that is
        made within this call; any other answer goes to `inbox()`."""
        stage = self.reviewers.get(service)
        if stage is None:
            return False
        if stage.mailbox.busy:
            return stage.mailbox.hand(Delivery("", inbox(), b"", b"", review, traceparent=traceparent))
        return stage.review(review, inbox) or True

    def _has_others(self, service: str, instance: str) -> bool:
        table, now = self.roster.table, asyncio.get_running_loop().time()
        return any(
            name != instance and table.is_addressable(service, name, now) for name in table.list_instances(service, now)
        )


def _timeout_s(message: PreprocessRequest | Journey) -> float | None:
    if isinstance(message, Journey) and message.itinerary and message.itinerary[0].timeout_ms is not None:
        return message.itinerary[0].timeout_ms / 1000
    return None
