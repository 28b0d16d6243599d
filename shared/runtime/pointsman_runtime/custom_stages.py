"""Stages that somebody else runs: asked, where the project's own are forwarded to.

An outsider then needs neither a heartbeat nor the subjects of other stages: it answers the message that it got. NATS
tells the asker, who owns the inbox, at once when nobody listens; and the asker keeps the time, so that a stage that
dies or hangs follows its `on_error` whatever state it is in.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import JOURNEY_LIMIT, HeaderEdit, Journey, RequestFacts, StageReport
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Answer, Decision, Parked, Rejection, read_reply
from pointsman_contracts.subjects import stage_subject
from pointsman_core.permission import IDENTITY, NOT_ALLOWED, allowed_models, may_use, not_allowed
from pointsman_runtime import message_headers
from pointsman_runtime.errors import BusError, MessageTooLarge, PayloadTooLarge
from pointsman_runtime.logs import Log
from pointsman_runtime.mailbox import Tally
from pointsman_runtime.missing import Missing
from pointsman_runtime.replies import FutureWaiter
from pointsman_runtime.routing_slip import failed, in_shadow, shadowed, skipped, unanswered

if TYPE_CHECKING:
    from pointsman_runtime.bus import Bus

TIMEOUT_S: Final = 1.0
"""For a stage whose itinerary names none."""
PARK_AFTER_S: Final = 0.2
"""An edge re-sends what nobody answers within its hop budget; this tells it before that the request is waited for."""
NOTE_LIMIT: Final = 512
"""Characters of a note that are kept."""

Settled = Journey | Rejection | Answer
"""What a stage may answer."""

_log = Log("custom-stages")


class CustomStages:
    """Asks the stages of others for one bus, and sends what they answer on its way."""

    def __init__(self, bus: "Bus") -> None:
        self._bus = bus
        self._tallies: dict[str, Tally] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._missing: Final = Missing(_log)

    def ask(self, journey: Journey, reply_to: str, traceparent: str | None) -> None:
        """Send a journey to its next stage and go on with the answer. Raises as `Bus.forward`."""
        stage = journey.itinerary[0]
        payload = journey.encode()
        if len(payload) > JOURNEY_LIMIT:
            raise MessageTooLarge(Journey.address.type_id, JOURNEY_LIMIT, len(payload))
        bus = self._bus
        now_ms = time.time_ns() // 1_000_000
        allowed_s = TIMEOUT_S if stage.timeout_ms is None else stage.timeout_ms / 1000
        due_ms = min(journey.deadline_ms, now_ms + round(allowed_s * 1000))
        waiter = FutureWaiter(bus.replies)
        loop = asyncio.get_running_loop()
        inbox = bus.replies.open(waiter, loop.time() + max(0, due_ms - now_ms) / 1000)
        headers = message_headers.build(Journey.address.type_id, deadline_ms=due_ms, traceparent=traceparent)
        try:
            bus.link.publish(stage_subject(stage.service), payload, inbox, headers)
        except BusError:
            bus.replies.close(waiter)
            raise
        task = loop.create_task(self._go_on(journey, waiter, reply_to, traceparent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
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
                self._missing.back(service)
        except BusError as error:
            # Nothing can be sent, the edge's answer included; the edge re-sends or gives up by itself.
            _log.error("unsent", error, request_id=journey.request_id)

    def _go_on_without(self, journey: Journey, failure: "_LetDown", reply_to: str, traceparent: str | None) -> None:
        """Follow the stage's `on_error`. Raises BusError when nothing can be sent."""
        try:
            self._send(self._without(journey, failure), reply_to, traceparent)
        except _LetDown:  # for what is said of the failure there is no room
            said = failure.message(journey.itinerary[0].service)
            self._bus.reply(reply_to, failed(journey, self._bus.process.service, failure.status, failure.code, said))

    async def _outcome(self, journey: Journey, waiter: FutureWaiter, reply_to: str) -> Settled:
        """What comes of the stage's answer. Raises _LetDown."""
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
            raise _LetDown("gave an answer that can't be used", 500, "stage_failed", malformed=True)
        if in_shadow(journey):
            return shadowed_by(journey, answer, took_ms)
        if isinstance(answer, Answer):
            return answered(journey, answer, took_ms)
        if isinstance(answer, Rejection):
            return rejected(journey, answer, took_ms)
        following = merged(journey, answer, took_ms)
        if not stays_allowed(journey, following):
            refusal = not_allowed(journey.model)
            return failed(following, self._bus.process.service, refusal.status, NOT_ALLOWED, refusal.message)
        return following

    def _send(self, outcome: Settled, reply_to: str, traceparent: str | None) -> None:
        """Raises _LetDown when it is too large for the bus, and BusError when nothing can be sent."""
        try:
            if isinstance(outcome, Rejection | Answer):
                self._bus.reply(reply_to, outcome, traceparent)
            else:
                self._bus.forward(outcome, reply_to, traceparent)
        except MessageTooLarge as error:
            raise _LetDown("made the request too large", 500, "stage_failed") from error
        except PayloadTooLarge as error:
            raise _LetDown("gave too large an answer", 500, "stage_failed") from error

    def _without(self, journey: Journey, failure: "_LetDown") -> Journey | Rejection:
        """How the request goes on, or ends, without its next stage."""
        stage, identity = journey.itinerary[0], self._bus.process
        tally = self._tally(stage.service)
        if failure.malformed:
            tally.malformed += 1
        else:
            tally.failed += 1
        self._missing.note(stage.service, failure.what, on_error=stage.on_error, request_id=journey.request_id)
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
            self._bus.reply(reply_to, parked)
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


def understood(payload: bytes, journey: Journey) -> Settled | None:
    """The answer for this journey; None when it is something else."""
    try:
        answer = Journey.decode(payload)
    except ValidationError:
        try:
            answer = read_reply(payload)
        except ValidationError:
            return None
    if isinstance(answer, Decision | Parked) or answer.request_id != journey.request_id:
        return None
    return None if isinstance(answer, Rejection) and not 400 <= answer.status <= 599 else answer


def merged(journey: Journey, answer: Journey, took_ms: float) -> Journey:
    """The journey with what a stage may change taken from its answer. What a request is and which way it goes stays."""
    return journey.model_copy(
        update={
            "request": _facts(journey, answer),
            "target": answer.target,
            "alternatives": answer.alternatives,
            "headers": answer.headers,
            "body": answer.body,
            "answer_headers": _answer_headers(journey, answer),
            "level": answer.level,
            "reasons": answer.reasons,
            "itinerary": journey.itinerary[1:],
            "trail": (*journey.trail, _report(journey, answer, took_ms, "passed")),
        }
    )


def stays_allowed(journey: Journey, following: Journey) -> bool:
    """Whether the models that a stage chose are ones that the identity may use, by their names at the engines."""
    allowed = allowed_models(journey.request.attributes)
    if allowed is None:
        return True
    settled = (journey.target, *journey.alternatives)
    chosen = (following.target, *following.alternatives)
    return all(target is None or target in settled or may_use(allowed, target.model) for target in chosen)


def _facts(journey: Journey, answer: Journey) -> RequestFacts:
    """What the stage says of the request. Who sends it was found out before, and stays. Of a body that it changed there
    is no fingerprint."""
    before, after = journey.request.attributes, answer.request.attributes
    facts = answer.request
    if facts.fingerprint and answer.body != journey.body:
        facts = facts.model_copy(update={"fingerprint": b""})
    if before.get(IDENTITY) == after.get(IDENTITY):
        return facts
    kept = {name: value for name, value in after.items() if name != IDENTITY}
    if IDENTITY in before:
        kept[IDENTITY] = before[IDENTITY]
    return facts.model_copy(update={"attributes": kept})


def rejected(journey: Journey, answer: Rejection, took_ms: float) -> Rejection:
    """The end of the journey at this stage, in the stage's words."""
    return answer.model_copy(
        update={
            "attempt": journey.attempt,
            "stage": journey.itinerary[0].service,
            "profile": journey.profile,
            "target": journey.target,
            "answer_headers": _answer_headers(journey, answer),
            "trail": (*journey.trail, _report(journey, answer, took_ms, "rejected")),
        }
    )


def shadowed_by(journey: Journey, answer: Settled, took_ms: float) -> Journey:
    """The journey behind a stage in shadow, with what it said on the trail."""
    if isinstance(answer, Answer):
        return shadowed(journey, "answered", _report(journey, answer, took_ms, "answered"))
    if not isinstance(answer, Rejection):
        return shadowed(journey, "passed", _report(journey, answer, took_ms, "passed"))
    report = _report(journey, answer, took_ms, "rejected")
    return shadowed(
        journey,
        "rejected",
        report.model_copy(update={"note": f"{answer.status} {answer.code or answer.type}"[:NOTE_LIMIT]}),
    )


def answered(journey: Journey, answer: Answer, took_ms: float) -> Answer:
    """The end of the journey at this stage, with the stage's answer. What it passes on the way back stays."""
    return answer.model_copy(
        update={
            "attempt": journey.attempt,
            "stage": journey.itinerary[0].service,
            "model": journey.model,
            "profile": journey.profile,
            "target": journey.target,
            "identity": Identity.of(journey.request.attributes),
            "response": journey.response,
            "answer_headers": _answer_headers(journey, answer),
            "level": journey.level if answer.level == "full" else answer.level,
            "reasons": (*journey.reasons, *answer.reasons),
            "trail": (*journey.trail, _report(journey, answer, took_ms, "answered")),
        }
    )


def _answer_headers(journey: Journey, answer: Settled) -> tuple[HeaderEdit, ...]:
    """What the stages before said, which a stage built on an older contract doesn't repeat, and what this one adds."""
    if not answer.answer_headers:
        return journey.answer_headers
    own = {edit.name.lower() for edit in answer.answer_headers}
    return (*[edit for edit in journey.answer_headers if edit.name.lower() not in own], *answer.answer_headers)


def _report(journey: Journey, answer: Settled, took_ms: float, outcome: str) -> StageReport:
    """Its own entry of the trail, if it made one, with the time that was measured here."""
    service = journey.itinerary[0].service
    own = answer.trail[len(journey.trail) :]
    last = own[-1] if own else StageReport(stage=service, instance="")
    note = None if last.note is None else last.note[:NOTE_LIMIT]
    return StageReport(stage=service, instance=last.instance, outcome=outcome, took_ms=took_ms, note=note)
