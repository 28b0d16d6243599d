"""How an edge gets a decision: sends a request into the stages, once more when nobody answers, and waits.

Every edge uses it. It answers with what the stages said, or raises why there is no answer; it knows nothing of
HTTP.
"""

import asyncio
import math
import time
from typing import Final

from pydantic import ValidationError

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, read_reply
from pointsman_contracts.subjects import direct_subject, stage_subject
from pointsman_runtime import message_headers
from pointsman_runtime.bus import HOP_BUDGET_S, Bus
from pointsman_runtime.errors import BusDisconnected, BusError, NobodyListens, NoReply
from pointsman_runtime.mailbox import Tally
from pointsman_runtime.presence import Direct, Nobody
from pointsman_runtime.replies import Waiter

FIRST_STAGE: Final = "preprocessor"
SECOND_WAIT: Final = 0.5
"""Share of the hop budget that the second try gets, so that both end well within a second."""
PARKED_LOOK_S: Final = 0.1
"""How often an edge looks whether the instance that parked a request still lives."""

Settled = Decision | Rejection | Answer
"""How the stages may end a journey."""


class JourneyClient:
    """Sends requests into the stages over one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.tally: Tally = bus.new_tally("replies")
        self.resent = 0
        """Requests sent a second time because nobody answered."""
        self.abandoned = 0
        """Requests sent again because the instance that had parked them fell silent."""

    async def send(
        self,
        request: PreprocessRequest,
        body: bytes,
        *,
        hop_budget_s: float = HOP_BUDGET_S,
        timeout_s: float = 30.0,
        traceparent: str | None = None,
    ) -> Settled:
        """Send a request and wait for its answer, at most `timeout_s` seconds and not past its own deadline.

        An answer must come within `hop_budget_s`, or a word that a stage has parked the request; otherwise it
        is sent once more. Raises BusDisconnected, BusCongested, PayloadTooLarge, NobodyListens when no live
        preprocessor is known, and NoReply. Cancelling forgets the request; an answer that still comes is
        counted as late.
        """
        pending = _Pending(self, self._bus, request, body, hop_budget_s, timeout_s, traceparent)
        try:
            pending.begin()
            return await pending.future
        finally:
            self._bus.replies.close(pending)


class _Pending(Waiter):
    """One request that waits for its decision."""

    __slots__ = (
        "_attempt",
        "_body",
        "_bus",
        "_client",
        "_deadline",
        "_held_until",
        "_holder",
        "_hop_budget_s",
        "_lost_holder",
        "_reply_to",
        "_request",
        "_started",
        "_traceparent",
        "future",
    )

    def __init__(
        self,
        client: JourneyClient,
        bus: Bus,
        request: PreprocessRequest,
        body: bytes,
        hop_budget_s: float,
        timeout_s: float,
        traceparent: str | None,
    ) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Settled] = loop.create_future()
        self._client = client
        self._bus = bus
        self._request = request
        self._body = body
        self._hop_budget_s = hop_budget_s
        self._traceparent = traceparent
        self._started = loop.time()
        left_s = (request.deadline_ms - time.time_ns() // 1_000_000) / 1000
        self._deadline = self._started + min(timeout_s, left_s)
        self._attempt = request.attempt
        self._holder: tuple[str, str] | None = None
        self._held_until = math.inf
        self._lost_holder = False
        self._reply_to = ""

    def begin(self) -> None:
        """Send for the first time; raises what prevents that."""
        due = min(self._started + self._hop_budget_s, self._deadline)
        self._reply_to = self._bus.replies.open(self, due)
        self._publish(self._request, self._started, resent=False)

    def replied(self, headers: bytes, payload: bytes) -> None:
        if not payload and message_headers.status(headers) == "503":
            self._fail(NobodyListens(FIRST_STAGE))
            return
        try:
            reply = read_reply(payload)
        except ValidationError as error:
            self._bus.malformed(self._client.tally, self._reply_to, payload, error)
            return
        self._client.tally.handled += 1
        if isinstance(reply, Parked):
            now = asyncio.get_running_loop().time()
            self._holder = (reply.stage, reply.instance)
            held_s = math.inf if reply.held_ms is None else reply.held_ms / 1000
            self._held_until = now + held_s + self._hop_budget_s
            self._bus.replies.extend(self, min(now + PARKED_LOOK_S, self._deadline))
            return
        self._bus.replies.close(self)
        if not self.future.done():
            self.future.set_result(reply)

    def overdue(self, now: float) -> None:
        if now >= self._deadline:
            self._give_up(now)
        elif self._holder is not None:
            if now < self._held_until and self._bus.heartbeat.table.alive(*self._holder, now):
                self._bus.replies.extend(self, min(now + PARKED_LOOK_S, self._deadline))
            elif self._lost_holder:
                self._give_up(now)
            else:
                self._lost_holder = True
                self._holder = None
                self._client.abandoned += 1
                self._resend(now)
        elif self._attempt == self._request.attempt:
            self._client.resent += 1
            self._resend(now)
        else:
            self._give_up(now)

    def _resend(self, now: float) -> None:
        self._attempt += 1
        self._bus.replies.extend(self, min(now + self._hop_budget_s * SECOND_WAIT, self._deadline))
        try:
            self._publish(self._request.model_copy(update={"attempt": self._attempt}), now, resent=True)
        except BusError as error:
            self._fail(error)

    def _publish(self, request: PreprocessRequest, now: float, *, resent: bool) -> None:
        where = self._bus.heartbeat.table.where(FIRST_STAGE, None, now, resent=resent, patient=True)
        if isinstance(where, Nobody):
            if not self._bus.connected:
                # The table is as old as the connection: say what is really missing.
                raise BusDisconnected(self._bus.link.reason)
            raise NobodyListens(FIRST_STAGE)
        to = direct_subject(FIRST_STAGE, where.instance) if isinstance(where, Direct) else _GROUP_SUBJECT
        hop_deadline = time.time_ns() // 1_000_000 + round(self._hop_budget_s * 1000)
        headers = message_headers.build(
            PreprocessRequest.address.type_id,
            deadline_ms=min(hop_deadline, request.deadline_ms),
            traceparent=self._traceparent,
        )
        self._bus.link.publish(to, b"\n".join((request.encode(), self._body)), self._reply_to, headers)

    def _give_up(self, now: float) -> None:
        self._fail(NoReply(FIRST_STAGE, round(now - self._started, 3)))

    def _fail(self, error: BusError) -> None:
        self._bus.replies.close(self)
        if not self.future.done():
            self.future.set_exception(error)


_GROUP_SUBJECT = stage_subject(FIRST_STAGE)
