"""The response stages of an edge: reviews answers and errors before the client gets them, and after the last byte."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pointsman_apis.api import Api
from pointsman_apis.errors import error_headers
from pointsman_apis.paths import WrongMethod
from pointsman_contracts.journey import Stage
from pointsman_contracts.reply import Answer, Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.answer_review import AnswerReview, Headers, Withheld
from pointsman_edge.reviewing.reviewers import Reviewers
from pointsman_edge.taking_in.bodies import HeldBodies
from pointsman_edge.telling.event_publisher import EventPublisher
from pointsman_edge.telling.request_record import RequestRecord

_JSON = (b"content-type", b"application/json")


class ReviewedRequest(Protocol):
    """A request whose answer may be reviewed."""

    @property
    def record(self) -> RequestRecord:
        """The request's record."""
        ...

    review: AnswerReview | None
    """The review of its answer, once one has begun."""


class ResponseStages:
    """Begins the review of each request's answer. A request without response stages costs nothing."""

    def __init__(self, edge: str, reviewers: Reviewers, bodies: HeldBodies, events: EventPublisher) -> None:
        """`bodies`: of the open requests; each is let go once no stage can ask for it any more."""
        self._edge = edge
        self._reviewers = reviewers
        self._bodies = bodies
        self._events = events
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_review(self, request: ReviewedRequest, reply: Decision | Answer) -> AnswerReview | None:
        """The review by the stages of the profile and those of every answer; None: there are none."""
        if not reply.response and not request.record.policy.postprocessing:
            return None
        return self.begin_any(request, reply)

    def begin_any(self, request: ReviewedRequest, reply: Decision | Answer) -> AnswerReview:
        """Like `begin`, but a review without stages, which lets the answer pass, if there are none."""
        return self._begin(request, (*reply.response, *request.record.policy.postprocessing))

    async def review_error(self, request: ReviewedRequest, refusal: Refusal) -> tuple[int, Headers, bytes]:
        """Status, headers and body of an error, reviewed by the stages of every answer (S0-63)."""
        record = request.record
        record.code = refusal.told_code
        headers, body = error_answer(refusal, record.api)
        if not record.policy.postprocessing:
            return refusal.status, headers, body
        review = self._begin(request, record.policy.postprocessing)
        try:
            headers, body = await review.whole(refusal.status, headers, body, refusal.told_code)
        except Withheld as withheld:
            record.code = withheld.told_code
            return withheld.status, *error_answer(withheld, record.api)
        review.note_sent_bytes(body)
        return refusal.status, headers, body

    async def check_answer(
        self, record: RequestRecord, stage: Stage, status: int, headers: Headers, body: bytes
    ) -> None:
        """Have a stage review an answer that is here as a whole, and may not be given. Raises Withheld where the stage
        blocks it, or fails."""
        review = AnswerReview((stage,), self._reviewers, record, self._edge)
        await review.given(status, headers, body, stream=record.stream)

    def ask_after_answer(self, request: ReviewedRequest) -> None:
        """The request has ended: ask the stages that come after the last byte, whatever its outcome."""
        record = request.record
        if request.review is None and record.policy.postprocessing:
            self._begin(request, record.policy.postprocessing)
        review = request.review
        if review is not None and review.follows:
            task = asyncio.get_running_loop().create_task(self._after(record, review))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif record.held is not None:
            self._bodies.let_go(record.held)

    async def wait_for_stages(self) -> None:
        """Wait until every stage that was asked has answered, or its time is over."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _after(self, record: RequestRecord, review: AnswerReview) -> None:
        try:
            self._events.publish_reviews(record, await review.after())
        finally:
            if record.held is not None:
                self._bodies.let_go(record.held)

    def _begin(self, request: ReviewedRequest, stages: Sequence[Stage]) -> AnswerReview:
        request.review = AnswerReview(stages, self._reviewers, request.record, self._edge)
        return request.review


def error_answer(refusal: Refusal, api: Api) -> tuple[Headers, bytes]:
    """Headers and body of an error, for a client of `api`."""
    headers = [_JSON, *error_headers(refusal)]
    if isinstance(refusal, WrongMethod):
        headers.append((b"allow", refusal.allowed.encode("ascii")))
    return headers, api.error(refusal)
