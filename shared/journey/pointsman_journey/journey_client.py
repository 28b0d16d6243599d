"""How an edge gets a decision: sends a request into the stages, again when no stage answers, and waits.

Every edge uses it. It answers with what the stages said, or raises why there is no answer; it knows nothing of
HTTP.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.message import MalformedMessage, Message
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, read_reply
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import direct_subject, stage_subject
from pointsman_journey.held_requests import HeldRequests, MissingStage
from pointsman_journey.hop_budget import HOP_BUDGET_S, budget_of
from pointsman_journey.journeys import Journeys
from pointsman_journey.presence import Direct, NoInstance
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.errors import BusCongested, BusDisconnected, BusError, NoListener, NoReply
from pointsman_runtime.bus.replies import Waiter
from pointsman_runtime.telling.tallies import Tally

FIRST_STAGE: Final = "preprocessor"
TRIES: Final = 6
"""How often a request is sent that gets no answer at all: one that ends every process that reads it must not go round
for ever."""
SILENT_S: Final = 3.0
"""Same as `edge.silent_wait`."""
_LOOK_S: Final = 1.0
"""A request that isn't sent again looks this often whether its stage still lives."""
PARKED_LOOK_S: Final = 0.1
"""How often an edge looks whether the instance that parked a request still lives."""

Settled = Decision | Rejection | Answer
"""How the stages may end a journey."""
_REPLIES: Final = (Decision, Rejection, Answer, Parked)
GivesUp = Callable[[str], bool]
"""Whether a request rather fails than waits for this stage to come back."""


class JourneyClient:
    """Sends requests into the stages of one edge."""

    def __init__(self, journeys: Journeys) -> None:
        self.journeys = journeys
        self._local = journeys.local
        self.tally: Tally = journeys.bus.new_tally("replies")
        self.held: Final = HeldRequests(self._is_back)
        self.resent = 0
        """Times that a request was sent again because no stage answered."""
        self.abandoned = 0
        """Requests sent again because the instance that had parked them fell silent."""

    async def send_request(
        self,
        request: PreprocessRequest,
        body: bytes,
        *,
        hop_budget_s: float = HOP_BUDGET_S,
        timeout_s: float = 30.0,
        silent_s: float = SILENT_S,
        traceparent: str | None = None,
        gives_up: GivesUp | None = None,
    ) -> Settled:
        """Send a request and wait for its answer, at most `timeout_s` seconds and not past its own deadline.

        An answer must come within `hop_budget_s`, or a word that a stage has parked the request; otherwise it
        is sent again, at growing intervals. While a stage on its way has no live replica, but had one that fell silent
        less than `silent_s` seconds ago, or left less than `timeout_s` seconds ago, the request is held, unless
        `gives_up(stage)`.

        Raises BusDisconnected, BusCongested, PayloadTooLarge, NoListener when there is no preprocessor, and NoReply.
        Cancelling forgets the request; an answer that still comes is counted as late.
        """
        pending = _PendingRequest(
            client=self,
            request=request,
            body=body,
            hop_budget_s=hop_budget_s,
            timeout_s=timeout_s,
            silent_s=silent_s,
            traceparent=traceparent,
            gives_up=gives_up,
        )
        try:
            called = self._local.call(FIRST_STAGE, request, pending, traceparent, body, straight=True)
            if isinstance(called, Decision):
                self.tally.handled += 1
                return called
            reply = pending.begin_waiting(called)
            return await reply if isinstance(reply, asyncio.Future) else reply
        finally:
            if pending.token:
                pending.close()

    def hold_time_left(self, place: MissingStage, silent_s: float, timeout_s: float, now: float) -> float:
        """Seconds for which a request is held while this stage has no live replica; at most 0: it isn't."""
        return self.journeys.heartbeat.table.hold_time_left(place.service, place.route, silent_s, timeout_s, now)

    def _is_back(self, place: MissingStage, now: float) -> bool:
        where = self.journeys.heartbeat.table.find_route(place.service, place.route, now)
        return self.journeys.bus.connected and not isinstance(where, NoInstance)


class _PendingRequest(Waiter):
    """One request that may have to wait for its decision. Most have it before they wait: the state of waiting is made
    when a stage asks for the inbox, or when none has decided."""

    __slots__ = (
        "_attempt",
        "_body",
        "_bus",
        "_client",
        "_deadline",
        "_gives_up",
        "_held_until",
        "_holder",
        "_hop_budget_s",
        "_journeys",
        "_missed",
        "_outcome",
        "_place",
        "_request",
        "_sent_to",
        "_silent_s",
        "_started",
        "_table",
        "_timeout_s",
        "_traceparent",
        "_unanswered",
        "future",
    )

    def __init__(
        self,
        client: JourneyClient,
        request: PreprocessRequest,
        body: bytes,
        hop_budget_s: float,
        timeout_s: float,
        silent_s: float,
        traceparent: str | None,
        gives_up: GivesUp | None,
    ) -> None:
        self.token = ""
        self._client = client
        self._request = request
        self._body = body
        self._hop_budget_s = hop_budget_s
        self._timeout_s = timeout_s
        self._silent_s = silent_s
        self._traceparent = traceparent
        self._gives_up = gives_up

    def inbox(self) -> str:
        """Where the reply goes: the request waits for it from now on."""
        if self.token:
            return self.token
        self.future: asyncio.Future[Settled] | None = None
        """The reply of a request that waits for it."""
        self._outcome: Settled | BusError | None = None
        """How it ended without waiting: stages of this process answer within the call."""
        journeys = self._journeys = self._client.journeys
        self._bus = journeys.bus
        self._table = journeys.heartbeat.table
        self._started = asyncio.get_running_loop().time()
        left_s = (self._request.deadline_ms - time.time_ns() // 1_000_000) / 1000
        self._deadline = self._started + min(self._timeout_s, left_s)
        self._attempt = self._request.attempt
        self._unanswered = 0
        """Tries that no stage answered."""
        self._holder: tuple[str, str] | None = None
        """Service and instance that parked the request."""
        self._held_until = 0.0
        self._missed: Rejection | NoListener | None = None
        """The end of the request unless the stage that it is held for comes back."""
        self._place = MissingStage(FIRST_STAGE)
        self._sent_to: str | None = None
        """Instance that the last try was addressed to; None when any of the group may have it."""
        return self._bus.replies.enter_quick_waiter(self)

    @property
    def size(self) -> int:
        """Bytes of its body."""
        return len(self._body)

    def begin_waiting(self, called: bool) -> "Settled | asyncio.Future[Settled]":
        """Begin to wait, after a stage of this process was called; without one, send the request to another process.
        The reply where it came within the call, else the future that will have it. Raises what prevents sending."""
        self.inbox()
        try:
            if not called:
                self._send_out(self._request, self._started, resent=False)
        except BusError as error:
            # An edge that may not decide alone can only wait or try again.
            held = isinstance(error, NoListener) and self._hold(MissingStage(FIRST_STAGE), error, self._started)
            if not held and not (isinstance(error, BusCongested) and self._gives_up is None):
                raise
        outcome = self._outcome
        if outcome is None:
            if not self.tick:
                self._bus.replies.extend_deadline(self, min(self._started + self._budget(), self._deadline))
            outcome = self.future = asyncio.get_running_loop().create_future()
        elif isinstance(outcome, BusError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Wait no more."""
        self._bus.replies.close(self)
        if self._missed is not None:
            self._client.held.let_go(self)

    def receive_reply(self, headers: bytes, payload: bytes) -> None:
        if not payload and message_headers.status(headers) == "503":
            self._table.mark_unreachable(FIRST_STAGE, self._sent_to)
            missing = NoListener(FIRST_STAGE)
            if self._missed is None and not self._hold(MissingStage(FIRST_STAGE), missing, _now()):
                self._fail_request(missing)
            return
        try:
            reply = read_reply(payload)
        except MalformedMessage as error:
            self._bus.tallies.count_malformed(self._client.tally, self.token, payload, error)
            return
        self.told(reply)

    def told(self, message: Message) -> None:
        if not isinstance(message, _REPLIES):
            return
        self._client.tally.handled += 1
        if isinstance(message, Parked):
            now = _now()
            self._holder = (message.stage, message.instance)
            held_s = math.inf if message.held_ms is None else message.held_ms / 1000
            self._held_until = now + held_s + self._hop_budget_s
            if self._missed is None:
                self._bus.replies.extend_deadline(self, min(now + PARKED_LOOK_S, self._deadline))
            return
        if not (isinstance(message, Rejection) and self._waits(message)):
            self._settle(message)

    def overdue(self, now: float) -> None:
        if now >= self._deadline:
            self._end(now)
        elif self._missed is not None:
            left_s = self._hope(self._place, now)
            if left_s > 0:
                self._bus.replies.extend_deadline(self, min(now + left_s, self._deadline))
            else:
                self._end(now)
        elif self._holder is None:
            self._try_again(now)
        elif now < self._held_until and self._table.is_alive(*self._holder, now):
            self._bus.replies.extend_deadline(self, min(now + PARKED_LOOK_S, self._deadline))
        else:
            self._holder = None
            self._client.abandoned += 1
            self._try_again(now)

    def go_on(self, now: float) -> None:
        """Send it again; the stage that it was held for is back."""
        self._missed = None
        self._resend(now)

    def _waits(self, rejection: Rejection) -> bool:
        """Whether the request is held for the stage that the rejection misses."""
        if rejection.missing is None:
            return False
        return self._missed is not None or self._hold(_place_of(rejection, rejection.missing), rejection, _now())

    def _budget(self) -> float:
        slack_s = self._table.slack_s
        return budget_of(self._unanswered + 1, self._hop_budget_s, slack_s, len(self._body))

    def _hold(self, place: MissingStage, missed: Rejection | NoListener, now: float) -> bool:
        """Hold the request until the stage is back; False when it ends with `missed`."""
        if (self._gives_up is not None and self._gives_up(place.service)) or now >= self._deadline:
            return False
        left_s = self._hope(place, now)
        if left_s <= 0 or not self._client.held.hold(self, place, now):
            return False
        self._missed = missed
        self._place = place
        self._holder = None
        self._bus.replies.extend_deadline(self, min(now + left_s, self._deadline))
        return True

    def _hope(self, place: MissingStage, now: float) -> float:
        return self._client.hold_time_left(place, self._silent_s, self._timeout_s, now)

    def _try_again(self, now: float) -> None:
        self._unanswered += 1
        if self._unanswered > 1 and self._gives_up is not None and self._gives_up(FIRST_STAGE):
            self._end(now)
        elif self._unanswered >= TRIES:
            # A stage that lives may still answer; none does once all are lost.
            if isinstance(self._table.find_route(FIRST_STAGE, None, now, patient=True), NoInstance):
                self._fail_request(NoListener(FIRST_STAGE))
            else:
                self._bus.replies.extend_deadline(self, min(now + _LOOK_S, self._deadline))
        else:
            self._client.resent += 1
            self._resend(now)

    def _resend(self, now: float) -> None:
        self._attempt += 1
        self._bus.replies.extend_deadline(self, min(now + self._budget(), self._deadline))
        try:
            request = self._request.changed(attempt=self._attempt)
            if not self._journeys.local.call(FIRST_STAGE, request, self, self._traceparent, self._body, resent=True):
                self._send_out(request, now, resent=True)
        except NoListener as missing:
            if not self._hold(MissingStage(FIRST_STAGE), missing, now):
                self._fail_request(missing)
        except BusCongested:
            # The earlier message may still wait in this process, for a server that reads slowly: it isn't lost.
            return
        except BusError as error:
            self._fail_request(error)

    def _send_out(self, request: PreprocessRequest, now: float, *, resent: bool) -> None:
        """Send the request to a preprocessor of another process."""
        where = self._table.find_route(FIRST_STAGE, None, now, resent=resent, patient=True)
        if isinstance(where, NoInstance):
            if not self._bus.connected:
                # The table is as old as the connection: report the part that is really missing.
                raise BusDisconnected(self._bus.link.reason)
            raise NoListener(FIRST_STAGE)
        self._sent_to = where.instance if isinstance(where, Direct) else None
        to = _GROUP_SUBJECT if self._sent_to is None else direct_subject(FIRST_STAGE, self._sent_to)
        clock = self._bus.clocks.read_own_clock(request.edge)
        hop_deadline = clock.at_ms + round(self._budget() * 1000)
        headers = message_headers.build(
            _TYPE_ID,
            deadline_ms=min(hop_deadline, request.deadline_ms),
            traceparent=self._traceparent,
            clock=clock,
        )
        envelope, body = request.encode(), self._body
        if len(headers) + len(envelope) + 1 + len(body) > self._bus.link.max_payload:
            # The preprocessor asks for it in parts.
            envelope, body = request.changed(body_bytes=len(body)).encode(), b""
        self._bus.link.publish(to, b"\n".join((envelope, body)), self.token, headers)

    def _end(self, now: float) -> None:
        """Its time is over."""
        if isinstance(self._missed, Rejection):
            self._settle(self._missed)
        else:
            self._fail_request(self._missed or NoReply(FIRST_STAGE, round(now - self._started, 3)))

    def _settle(self, reply: Settled) -> None:
        self.close()
        if self.future is None:
            self._outcome = reply
        elif not self.future.done():
            self.future.set_result(reply)

    def _fail_request(self, error: BusError) -> None:
        self.close()
        if self.future is None:
            self._outcome = error
        elif not self.future.done():
            self.future.set_exception(error)


def _place_of(rejection: Rejection, service: str) -> MissingStage:
    """Where the rejection reports that no replica is live."""
    address = STAGES.get(service)
    target = rejection.target
    return MissingStage(service, target.pool if address is not None and address.route and target is not None else None)


def _now() -> float:
    return asyncio.get_running_loop().time()


_TYPE_ID = PreprocessRequest.address.type_id
_GROUP_SUBJECT = stage_subject(FIRST_STAGE)
