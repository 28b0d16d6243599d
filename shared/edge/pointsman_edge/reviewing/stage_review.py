"""One response stage's review of one answer: the questions to it, and its report."""

import hashlib
import time
from collections.abc import Iterable
from typing import Final

from pointsman_apis.streams import StreamEvent
from pointsman_contracts.journey import AnswerUse, BodyEdit, Stage, StageReport
from pointsman_contracts.message import Blob
from pointsman_contracts.response import Usage
from pointsman_contracts.response_stage import AnswerText, ResponseReview
from pointsman_edge.reviewing.answer_window import AnswerWindow
from pointsman_edge.reviewing.reviewers import timeout_of
from pointsman_edge.telling.request_record import RequestRecord

OUTCOMES: Final = {"pass": "passed", "replace": "replaced", "block": "blocked"}
"""`StageReport.outcome` of each action of a verdict."""
NOTE_LIMIT: Final = 512
"""Characters of a note that are kept."""
_WEIGHT: Final = {"passed": 0, "replaced": 1, "skipped": 2, "failed": 3, "blocked": 4}


class StageReview:
    """One stage and one answer."""

    __slots__ = ("_asked", "_record", "_window", "fields", "given_up", "position", "stage", "unread", "use")

    def __init__(self, position: int, stage: Stage, record: RequestRecord) -> None:
        self.position = position
        self.stage = stage
        self.use = stage.answer or AnswerUse()
        self._record = record
        self._asked = 0
        self.given_up = False
        """The stage isn't asked any more: the answer is too large to be held for it, or it needs nothing of it."""
        self.fields: tuple[BodyEdit, ...] = ()
        """Set in every event of a stream that leaves from now on."""
        self.unread = False
        """Some part of the answer couldn't be shown to the stage."""
        self._window: AnswerWindow | None = None

    @property
    def is_in_share(self) -> bool:
        """Whether the answer is in the share that the stage is asked about."""
        share = self.use.share
        if share >= 1.0:
            return True
        decision = self._record.decision
        session = None if decision is None else decision.session
        sampled = self._record.request_id if session is None else session.id
        return int.from_bytes(hashlib.blake2b(sampled.encode(), digest_size=8).digest()) < share * 2**64

    @property
    def window(self) -> AnswerWindow:
        """The events of a stream that the stage hasn't let pass yet."""
        if self._window is None:
            self._window = AnswerWindow(self._record.api, self.use)
        return self._window

    def edit_events(self, events: Iterable[StreamEvent]) -> None:
        """Set the stage's fields in events that leave."""
        if self.fields:
            for event in events:
                event.set(self.fields)

    def question(
        self,
        edge: str,
        *,
        status: int,
        headers: list[tuple[bytes, bytes]],
        texts: tuple[AnswerText, ...],
        body: bytes | None,
        outcome: str,
        code: str | None,
        last: bool = True,
        truncated: bool = False,
        usage: Usage | None = None,
        stages: tuple[StageReport, ...] = (),
    ) -> ResponseReview:
        """The next question to the stage: the part of the answer that it gets to see, in the terms of `ResponseReview`.
        `edge` is the instance that asks."""
        self._asked += 1
        record, stage = self._record, self.stage
        reply = record.reply
        return ResponseReview(
            request_id=record.request_id,
            edge=edge,
            stage=stage.service,
            policy=stage.policy,
            revision=record.policy.revision,
            deadline_ms=time.time_ns() // 1_000_000 + round(timeout_of(stage) * 1000),
            mode=self.use.mode,
            number=self._asked,
            last=last,
            api=record.api.name,
            stream=record.stream,
            mirrored=record.mirrored,
            status=status,
            outcome=outcome,
            code=code,
            profile=(reply.profile or None) if reply is not None else None,
            plan=reply.identity.plan if reply is not None and reply.identity is not None else "",
            model=record.model,
            target=reply.target if reply is not None else None,
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
            texts=texts,
            body=None if body is None else Blob(body),
            truncated=truncated,
            usage=usage,
            served=record.served,
            cost_nanos=record.cost_nanos,
            ttft_ms=record.ttft_ms if record.duration_ms is not None else None,
            duration_ms=record.duration_ms,
            stages=stages,
            memo=stage.memo,
            makeshift=record.makeshift,
        )


class StageTrail:
    """The reports of the stages on one answer: one for each stage, however often it was asked."""

    def __init__(self) -> None:
        self._reports: dict[int, StageReport] = {}

    def add_report(self, review: StageReview, outcome: str, took_s: float, instance: str, note: str | None) -> None:
        """A stage was asked. The gravest outcome is kept, with its note; times add up."""
        took_ms = round(took_s * 1000, 3)
        note = None if note is None else note[:NOTE_LIMIT]
        report = StageReport(stage=review.stage.service, instance=instance, outcome=outcome, took_ms=took_ms, note=note)
        before = self._reports.get(review.position)
        if before is not None:
            graver = report if _WEIGHT[outcome] > _WEIGHT[before.outcome] else before
            report = graver.changed(took_ms=round(before.took_ms + took_ms, 3))
        self._reports[review.position] = report

    def list_reports(self) -> tuple[StageReport, ...]:
        """The reports, in the order of the itinerary."""
        return tuple(self._reports[position] for position in sorted(self._reports))


def in_shadow(report: StageReport) -> StageReport:
    """The report of a stage whose verdict isn't acted on. A failure is reported as that of any other stage."""
    return report if report.outcome == "failed" else report.changed(outcome=f"shadow_{report.outcome}")
