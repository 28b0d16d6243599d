"""One stage on the way back: a review in, its verdict out."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.response_stage import NO_VERDICT, ResponseReview, Verdict
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.bus.mailbox import Delivery
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tally

Reviewer = Callable[[ResponseReview], Verdict | Awaitable[Verdict]]

_log = Log("review-stage")


class ReviewStage:
    """Decodes, calls the reviewer, sends its verdict."""

    def __init__(self, bus: Bus, tally: Tally, reviewer: Reviewer, *, pending: int, concurrency: int) -> None:
        self._bus = bus
        self._tally = tally
        self._reviewer = reviewer
        self.mailbox: Final = bus.make_mailbox(tally, self.handle, pending=pending, concurrency=concurrency)

    def handle(self, delivery: Delivery) -> Coroutine[object, object, None] | None:
        """Handle one review; returns the rest as a coroutine when the reviewer is asynchronous."""
        review = delivery.message
        if not isinstance(review, ResponseReview):
            headers = delivery.headers
            if self._bus.clocks.is_past(message_headers.deadline_ms(headers), message_headers.find_clock(headers)):
                self._tally.dead += 1
                return None
            try:
                review = ResponseReview.decode(delivery.payload)
            except MalformedMessage as error:
                self._bus.tallies.count_malformed(self._tally, delivery.subject, delivery.payload, error)
                return None
        try:
            verdict = self._reviewer(review)
        except Exception as error:  # noqa: BLE001 - the edge must have an answer
            self._failed(delivery.reply, review, error)
            return None
        if isinstance(verdict, Verdict):
            self._answer(delivery.reply, review, verdict)
            return None
        return self._answer_later(delivery.reply, review, verdict)

    def review(self, review: ResponseReview, inbox: Callable[[], str]) -> Verdict | None:
        """Review for an edge of this process: returns a verdict that is made within this call. Any other answer goes to
        `inbox()`."""
        try:
            verdict = self._reviewer(review)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._failed(inbox(), review, error)
            return None
        if isinstance(verdict, Verdict):
            self._tally.handled += 1
            return verdict
        self.mailbox.run(self._answer_later(inbox(), review, verdict))
        return None

    async def _answer_later(self, reply_to: str, review: ResponseReview, verdict: Awaitable[Verdict]) -> None:
        try:
            result = await verdict
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._failed(reply_to, review, error)
            return
        self._answer(reply_to, review, result)

    def _answer(self, reply_to: str, review: ResponseReview, verdict: Verdict) -> None:
        self._tally.handled += 1
        if not self._bus.replies.deliver_reply(reply_to, verdict):
            self._send(reply_to, review, verdict.encode())

    def _failed(self, reply_to: str, review: ResponseReview, error: Exception) -> None:
        self._tally.failed += 1
        _log.error("review_failed", error, request_id=review.request_id)
        self._send(reply_to, review, NO_VERDICT)

    def _send(self, reply_to: str, review: ResponseReview, payload: bytes) -> None:
        try:
            self._bus.link.publish(reply_to, payload, headers=message_headers.build(Verdict.address.type_id))
        except BusError as error:
            # The edge follows the stage's `on_error` when its time is over.
            _log.error("unsent", error, request_id=review.request_id)
