"""Runs the response stages that come after the last byte of an answer."""

import time
from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import StageReport
from pointsman_contracts.response_stage import AnswerText, ResponseReview
from pointsman_edge.reviewing.answer_texts import texts_of_stream, texts_of_whole
from pointsman_edge.reviewing.reviewers import UNREADABLE, NoVerdict, Reviewers
from pointsman_edge.reviewing.stage_review import OUTCOMES, StageReview, StageTrail, in_shadow
from pointsman_edge.reviewing.whole_answer import WholeAnswer
from pointsman_edge.telling.request_record import RequestRecord

LARGEST: Final = 4 * 2**20
"""Bytes of an answer that are kept for these stages; of a larger one they see nothing."""


class AfterAnswer:
    """One answer, as the client gets it."""

    def __init__(self, reviews: Sequence[StageReview], reviewers: Reviewers, record: RequestRecord, edge: str) -> None:
        self._reviews = tuple(reviews)
        self._reviewers = reviewers
        self._record = record
        self._edge = edge
        self.follows = bool(reviews)
        """Whether a stage is asked."""
        self.keeps = any(review.use.content != "none" for review in reviews)
        """Whether a stage gets to see the answer."""
        self.answer: WholeAnswer | None = None
        """An answer that isn't streamed, as the stages before its first byte left it."""
        self._kept: list[bytes] | None = []
        self._kept_size = 0

    def add_reviews(self, reviews: Sequence[StageReview]) -> None:
        """Ask these as well; nothing of the answer has left yet."""
        self._reviews += tuple(reviews)
        self.follows = bool(self._reviews)
        self.keeps = self.keeps or any(review.use.content != "none" for review in reviews)

    def note_sent_bytes(self, data: bytes) -> None:
        """These bytes are on their way to the client."""
        if self.keeps and self._kept is not None:
            self._kept_size += len(data)
            if self._kept_size > LARGEST:
                self._kept = None
            else:
                self._kept.append(data)

    async def ask_stages(self, headers: list[tuple[bytes, bytes]]) -> tuple[StageReport, ...]:
        """Ask the stages in order, each with the reports of those before it; returns their reports. Never raises."""
        record = self._record
        trail = StageTrail()
        kept = b"".join(self._kept) if self._kept is not None else None
        for review in self._reviews:
            texts = self._texts(kept) if review.use.content == "text" and kept is not None else ()
            if texts is None:
                self._failed(review, NoVerdict(UNREADABLE, 502, "answer_unreadable"), 0.0, trail)
                continue
            question = review.question(
                self._edge,
                status=record.status,
                headers=headers,
                texts=texts,
                body=kept if review.use.content == "body" else None,
                outcome=record.outcome or "",
                code=record.code,
                truncated=kept is None and review.use.content != "none",
                usage=record.usage,
                stages=(*record.stages, *trail.list_reports()),
            )
            await self._ask_stage(review, question, trail)
        return tuple(
            in_shadow(report) if review.stage.mode == "shadow" else report
            for review, report in zip(self._reviews, trail.list_reports(), strict=True)
        )

    async def _ask_stage(self, review: StageReview, question: ResponseReview, trail: StageTrail) -> None:
        began = time.perf_counter()
        try:
            verdict = await self._reviewers.ask_stage(review.stage, question, self._record.traceparent)
        except NoVerdict as failure:
            self._failed(review, failure, time.perf_counter() - began, trail)
            return
        self._reviewers.count_success(review.stage)
        trail.add_report(review, OUTCOMES[verdict.action], time.perf_counter() - began, verdict.instance, verdict.note)

    def _failed(self, review: StageReview, failure: NoVerdict, took_s: float, trail: StageTrail) -> None:
        self._reviewers.count_failure(review.stage, failure, self._record.request_id)
        trail.add_report(review, "failed", took_s, "", failure.what)

    def _texts(self, body: bytes) -> tuple[AnswerText, ...] | None:
        """The texts of the answer as it left; None if some part of it can't be read."""
        api = self._record.api
        if not self._record.stream:
            answer = self.answer
            return texts_of_whole(answer if answer and answer.edited_body == body else WholeAnswer(api, body))
        return texts_of_stream(api, body)
