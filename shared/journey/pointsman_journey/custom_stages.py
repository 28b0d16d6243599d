"""Custom stages, which others run: they are asked and answer, where the project's own stages forward.

An outsider then needs neither a heartbeat nor the subjects of other stages: it answers the message that it got. NATS
tells the asker, who owns the inbox, at once when no process listens; and the asker keeps the time, so that a stage that
dies or hangs follows its `on_error` whatever state it is in.
"""

import asyncio
import time
from typing import Final, Protocol

from pointsman_contracts.journey import JOURNEY_LIMIT, Journey
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Answer, Parked, Rejection
from pointsman_contracts.subjects import stage_subject
from pointsman_journey.custom_answers import Servers, Settled, nowhere, outcome_of, understood
from pointsman_journey.hop import Onward
from pointsman_journey.routing_slip import failed, skipped, unanswered
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, MessageTooLarge, PayloadTooLarge
from pointsman_runtime.bus.replies import FutureWaiter
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing
from pointsman_runtime.telling.tallies import Tally

TIMEOUT_S: Final = 1.0
"""For a stage whose itinerary names none."""
PARK_AFTER_S: Final = 0.2
"""An edge sends a request again that has no answer within its hop budget; parking makes it wait instead."""

_log = Log("custom-stages")


class Router(Onward, Protocol):
    """Forwards the answer of a custom stage: `Journeys` of the service that asked it."""

    servers: Servers | None


class CustomStages:
    """Asks custom stages on behalf of one service, and sends their answers on."""

    def __init__(self, bus: Bus, onward: Router) -> None:
        self._bus = bus
        self._onward = onward
        self._tallies: dict[str, Tally] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._missing: Final = Missing(_log)

    def ask_stage(self, journey: Journey, reply_to: str, traceparent: str | None) -> None:
        """Send a journey to its next stage and go on with the answer. Raises what `Journeys.forward` raises."""
        stage = journey.itinerary[0]
        payload = journey.encode()
        if len(payload) > JOURNEY_LIMIT:
            raise MessageTooLarge(Journey.address.type_id, JOURNEY_LIMIT, len(payload))
        bus = self._bus
        now_ms = bus.clocks.tell_time(journey.edge)
        allowed_s = TIMEOUT_S if stage.timeout_ms is None else stage.timeout_ms / 1000
        due_ms = min(journey.deadline_ms, now_ms + round(allowed_s * 1000))
        waiter = FutureWaiter(bus.replies)
        loop = asyncio.get_running_loop()
        inbox = bus.replies.enter_waiter(waiter, loop.time() + max(0, due_ms - now_ms) / 1000)
        headers = message_headers.build(
            Journey.address.type_id,
            deadline_ms=due_ms,
            traceparent=traceparent,
            clock=bus.clocks.read_clock(journey.edge),
        )
        try:
            bus.link.publish(stage_subject(stage.service), payload, inbox, headers)
        except BusError:
            bus.replies.close(waiter)
            raise
        task = loop.create_task(self._go_on(journey, waiter, reply_to, traceparent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for_answers(self) -> None:
        """Wait until every stage that was asked has answered, or its time is over."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _go_on(self, journey: Journey, waiter: FutureWaiter, reply_to: str, traceparent: str | None) -> None:
        service = journey.itinerary[0].service
        try:
            try:
                self._send(await self._outcome(journey, waiter, reply_to), reply_to, traceparent)
            except _LetDown as failure:
                self._go_on_without(journey, failure, reply_to, traceparent)
            else:
                self._tally(service).handled += 1
                self._missing.note_recovery(service)
        except BusError as error:
            # Nothing can be sent, the edge's answer included; the edge re-sends or gives up by itself.
            _log.error("unsent", error, request_id=journey.request_id)

    def _go_on_without(self, journey: Journey, failure: "_LetDown", reply_to: str, traceparent: str | None) -> None:
        """Follow the stage's `on_error`. Raises BusError when nothing can be sent."""
        try:
            self._send(self._without(journey, failure), reply_to, traceparent)
        except _LetDown:  # no room in the message for the report of the failure
            said = failure.message(journey.itinerary[0].service)
            self._onward.reply(reply_to, failed(journey, self._bus.process.service, failure.status, failure.code, said))

    async def _outcome(self, journey: Journey, waiter: FutureWaiter, reply_to: str) -> Settled:
        """The journey or its end after the stage's answer. Raises _LetDown."""
        began = time.perf_counter()
        parking = asyncio.get_running_loop().call_later(PARK_AFTER_S, self._park, journey, reply_to, waiter.due)
        try:
            headers, payload = await waiter.future
        except TimeoutError:
            raise _LetDown("was too slow", 504, "stage_timeout") from None
        finally:
            parking.cancel()
            self._bus.replies.close(waiter)
        took_ms = round((time.perf_counter() - began) * 1000, 3)
        if not payload and message_headers.status(headers) == "503":
            raise _LetDown("has no live instance", 503, STAGE_UNAVAILABLE)
        answer = understood(payload, journey)
        if answer is None:
            raise _LetDown("gave an invalid answer", 500, "stage_failed", malformed=True)
        servers = self._onward.servers
        if servers is not None and nowhere(journey, answer, servers):
            words = "chose a pool or provider that isn't configured"
            raise _LetDown(words, 500, "stage_failed", malformed=True)
        return outcome_of(journey, answer, self._bus.process.service, took_ms)

    def _send(self, outcome: Settled, reply_to: str, traceparent: str | None) -> None:
        """Raises _LetDown when it is too large for the bus, and BusError when nothing can be sent."""
        try:
            if isinstance(outcome, Rejection | Answer):
                self._onward.reply(reply_to, outcome, traceparent)
            else:
                self._onward.forward(outcome, reply_to, traceparent)
        except MessageTooLarge as error:
            raise _LetDown("made the request too large", 500, "stage_failed") from error
        except PayloadTooLarge as error:
            raise _LetDown("gave too large an answer", 500, "stage_failed") from error

    def _without(self, journey: Journey, failure: "_LetDown") -> Journey | Rejection:
        """The next message of the request without its next stage."""
        stage, identity = journey.itinerary[0], self._bus.process
        tally = self._tally(stage.service)
        if failure.malformed:
            tally.malformed += 1
        else:
            tally.failed += 1
        self._missing.note_missing(stage.service, failure.what, on_error=stage.on_error, request_id=journey.request_id)
        if stage.on_error != "deny":
            return skipped(journey, identity.instance, f"{stage.service} {failure.what}")
        if failure.status == 503:
            return unanswered(journey, identity.service)
        return failed(journey, identity.service, failure.status, failure.code, failure.message(stage.service))

    def _park(self, journey: Journey, reply_to: str, due: float) -> None:
        left_s = max(0.0, due - asyncio.get_running_loop().time())
        identity = self._bus.process
        parked = Parked(
            request_id=journey.request_id,
            attempt=journey.attempt,
            stage=identity.service,
            instance=identity.instance,
            reason=f"waiting for {journey.itinerary[0].service}",
            held_ms=round(left_s * 1000),
        )
        try:
            self._onward.reply(reply_to, parked)
        except BusError as error:
            _log.error("unsent", error, request_id=journey.request_id)

    def _tally(self, service: str) -> Tally:
        tally = self._tallies.get(service)
        if tally is None:
            tally = self._tallies[service] = self._bus.new_tally(f"custom-stage.{service}")
        return tally


class _LetDown(Exception):
    """The stage's failure. `what` finishes the sentence "The stage … "; status and code are for `deny`."""

    def __init__(self, what: str, status: int, code: str, *, malformed: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.status = status
        self.code = code
        self.malformed = malformed

    def message(self, service: str) -> str:
        """For the client."""
        return f"The stage {service} {self.what}."
