"""Asks response stages for their verdict, over the bus."""

import asyncio
from typing import Final, Protocol

from pointsman_contracts.journey import Stage
from pointsman_contracts.message import MalformedMessage, Message
from pointsman_contracts.reply import STAGE_UNAVAILABLE
from pointsman_contracts.response_stage import NO_VERDICT, ResponseReview, Verdict
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.addresses import Addresses
from pointsman_runtime.bus.errors import BusError, PayloadTooLarge
from pointsman_runtime.bus.replies import FutureWaiter, ReplyTable
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing
from pointsman_runtime.telling.tallies import Tally

TIMEOUT_S: Final = 1.0
"""For a stage whose declaration has no timeout."""
TOO_LARGE: Final = "can't review a response of this size"
UNREADABLE: Final = "can't read the whole response"

_log = Log("response-stages")


class NoVerdict(Exception):
    """A stage gave no verdict, or one of no use. `what` completes the sentence "The stage … "; status and code are for
    the client if the stage may not be skipped."""

    def __init__(self, what: str, status: int, code: str) -> None:
        super().__init__(what)
        self.what = what
        self.status = status
        self.code = code


class Reviewers(Protocol):
    """Asks response stages, and counts how they do."""

    async def ask_stage(self, stage: Stage, review: ResponseReview, traceparent: str | None) -> Verdict:
        """The stage's verdict. Raises NoVerdict."""
        ...

    def count_success(self, stage: Stage) -> None:
        """Count a verdict that was of use."""
        ...

    def count_failure(self, stage: Stage, failure: NoVerdict, request_id: str) -> None:
        """Count a failure, and log the first one until the stage works again."""
        ...


class _VerdictWaiter(FutureWaiter):
    """Waits for one verdict, as bytes or from a stage of this process."""

    __slots__ = ("verdict",)

    def __init__(self, table: ReplyTable, due: float) -> None:
        super().__init__(table)
        self.verdict: Verdict | None = None
        self.token = ""
        self.due = due

    def inbox(self) -> str:
        """The subject of the answer; only here the waiter enters the table."""
        return self.token or self._table.enter_waiter(self, self.due)

    def told(self, message: Message) -> None:
        """Settle with the object."""
        if isinstance(message, Verdict):
            self.verdict = message
        self.receive_reply(b"", b"")


class StageReviewers:
    """The stages on one bus."""

    def __init__(self, journeys: Journeys) -> None:
        self._local = journeys.local
        self._bus = journeys.bus
        self._addresses = Addresses()
        self._tallies: dict[str, Tally] = {}
        self._missing = Missing(_log)

    async def ask_stage(self, stage: Stage, review: ResponseReview, traceparent: str | None) -> Verdict:
        """Like `Reviewers.ask_stage`, within the stage's own timeout."""
        bus = self._bus
        waiter = _VerdictWaiter(bus.replies, asyncio.get_running_loop().time() + timeout_of(stage))
        try:
            called = self._local.call_reviewer(stage.service, review, waiter.inbox, traceparent)
            if isinstance(called, Verdict):
                return _checked(called, review)
            if not called:
                headers = message_headers.build(
                    ResponseReview.address.type_id,
                    deadline_ms=review.deadline_ms,
                    traceparent=traceparent,
                    clock=bus.clocks.read_own_clock(review.edge),
                )
                to = self._addresses.message(ResponseReview, (stage.service,))
                bus.link.publish(to, review.encode(), waiter.inbox(), headers)
            got, payload = await waiter.future
        except PayloadTooLarge as error:
            raise NoVerdict(TOO_LARGE, 502, "answer_too_large") from error
        except BusError as error:
            raise NoVerdict("can't be reached", 503, STAGE_UNAVAILABLE) from error
        except TimeoutError as error:
            raise NoVerdict("was too slow", 504, "stage_timeout") from error
        finally:
            if waiter.token:
                bus.replies.close(waiter)
        if not payload and message_headers.status(got) == "503":
            raise NoVerdict("has no live instance", 503, STAGE_UNAVAILABLE)
        if payload == NO_VERDICT:
            raise NoVerdict("can't review the response at the moment", 503, "stage_failed")
        try:
            verdict = waiter.verdict or Verdict.decode(payload)
        except MalformedMessage as error:
            self._tally(stage.service).malformed += 1
            raise NoVerdict("sent an invalid verdict", 500, "stage_failed") from error
        return _checked(verdict, review)

    def count_success(self, stage: Stage) -> None:
        """Count a verdict that was of use."""
        self._tally(stage.service).handled += 1
        self._missing.note_recovery(stage.service)

    def count_failure(self, stage: Stage, failure: NoVerdict, request_id: str) -> None:
        """Count a failure, and log the first one until the stage works again."""
        self._tally(stage.service).failed += 1
        self._missing.note_missing(stage.service, failure.what, on_error=stage.on_error, request_id=request_id)

    def _tally(self, service: str) -> Tally:
        tally = self._tallies.get(service)
        if tally is None:
            tally = self._tallies[service] = self._bus.new_tally(f"response-stage.{service}")
        return tally


def _checked(verdict: Verdict, review: ResponseReview) -> Verdict:
    """A verdict about this request. Raises NoVerdict for one about another."""
    if verdict.request_id != review.request_id:
        raise NoVerdict("sent the verdict for another request", 500, "stage_failed")
    return verdict


def timeout_of(stage: Stage) -> float:
    """How long a stage may take, in seconds."""
    return TIMEOUT_S if stage.timeout_ms is None else stage.timeout_ms / 1000
