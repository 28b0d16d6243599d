"""Has one answer reviewed by its response stages: those that the client waits for, in order, then those after it."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from pointsman_apis.streams import EventSplitter, StreamEvent
from pointsman_apis.texts import Slot
from pointsman_contracts.journey import AFTER, BodyEdit, HeaderEdit, Stage, StageReport
from pointsman_contracts.response_stage import AnswerText, Verdict
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.after_answer import AfterAnswer
from pointsman_edge.reviewing.reviewers import TOO_LARGE, UNREADABLE, NoVerdict, Reviewers
from pointsman_edge.reviewing.stage_review import OUTCOMES, StageReview, StageTrail
from pointsman_edge.reviewing.surrogates import Halves
from pointsman_edge.reviewing.whole_answer import WholeAnswer
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.telling.request_record import RequestRecord

_LEVEL: Final = b"x-pointsman-level"

Headers = list[tuple[bytes, bytes]]
Fields = tuple[BodyEdit, ...]
Put = Callable[[dict[str, str], Fields], None]
"""Puts texts, by part, and fields of the top level into the answer, all or none. Raises ValueError."""


class Withheld(Refusal):
    """A response stage doesn't let the answer pass."""

    blocked = False
    """True: the stage blocked the answer. False: the stage failed and may not be skipped."""


class AnswerReview:
    """One answer. Either `whole` once, or `begin`, `push` and `finish` for a stream; `after` in any case."""

    def __init__(self, stages: Sequence[Stage], reviewers: Reviewers, record: RequestRecord, edge: str) -> None:
        """`edge`: the instance that asks."""
        self._stages = list(stages)
        reviews = [StageReview(position, stage, record) for position, stage in enumerate(stages)]
        self._blocking = [review for review in reviews if review.use.mode != AFTER]
        after = [review for review in reviews if review.use.mode == AFTER and review.is_in_share]
        self._after = AfterAnswer(after, reviewers, record, edge)
        self._most_held = record.policy.limits.max_held_answer
        """Bytes of the answer that are held for stages which the client waits for."""
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self.blocks = bool(self._blocking)
        """Whether the client waits for a stage."""
        self._reviewers = reviewers
        self._record = record
        self._edge = edge
        self._trail = StageTrail()
        self._splitter = EventSplitter()
        self._halves = Halves(record.api)
        self._end = record.api.end()
        self._headers: Headers = []
        self._status = 0
        self._lenient = False
        self.headers_left = False
        """The headers have left; edits of them are ignored."""

    @property
    def needs_all(self) -> bool:
        """Whether a stage that the client waits for sees the answer whole."""
        return any(review.use.mode == "buffer" and review.use.content != "none" for review in self._blocking)

    @property
    def keeps(self) -> bool:
        """Whether a stage after the answer gets to see it."""
        return self._after.keeps

    @property
    def follows(self) -> bool:
        """Whether a stage is asked after the last byte."""
        return self._after.follows

    def follow_decision(self, stages: Sequence[Stage]) -> None:
        """Another decision was made about the request, with these stages: those with a memo of it are asked as well,
        after the last byte. No-op for stages that are asked already."""
        added = [stage for stage in stages if stage.memo is not None and stage not in self._stages]
        first = len(self._stages)
        self._stages += added
        self._after.add_reviews(
            [
                StageReview(first + place, stage, self._record)
                for place, stage in enumerate(added)
                if stage.answer is not None and stage.answer.mode == AFTER
            ]
        )

    async def gather(self, data: bytes) -> bytes:
        """Hold the next bytes of an answer that isn't streamed, for `gathered`.

        Returns the bytes that leave now: none, unless the answer is too large to be held and every stage may be
        skipped. Raises Withheld if one may not.
        """
        self._gathered.append(data)
        self._gathered_size += len(data)
        if self._gathered_size <= self._most_held:
            return b""
        await self._give_up_all()
        return self.take_gathered()

    def take_gathered(self) -> bytes:
        """The bytes that `gather` holds; they are let go."""
        held = b"".join(self._gathered)
        self._gathered = []
        return held

    async def whole(self, status: int, headers: Headers, body: bytes, code: str | None = None) -> tuple[Headers, bytes]:
        """Headers and body that the client gets of an answer that isn't streamed. Raises Withheld.

        `code`: the answer is an error of the gateway's own, which passes even if a stage fails.
        """
        self._status, self._headers = status, headers
        self._lenient = code is not None
        if len(body) > self._most_held:
            await self._give_up_all()
        answer = self._after.answer = WholeAnswer(self._record.api, body)
        for review in self._blocking:
            if review.given_up:
                continue
            slots: list[Slot] = []
            if review.use.content == "text":
                reading = answer.reading
                if reading is None:
                    self._unread(review)
                    continue
                slots = reading.slots
            texts = tuple(AnswerText(part=slot.part, kind=slot.kind, text=slot.text) for slot in slots)

            def put(edits: dict[str, str], fields: Fields, slots: list[Slot] = slots) -> None:
                if edits:
                    answer.replace_texts([(slot, edits[slot.part]) for slot in slots if slot.part in edits])
                if fields:
                    answer.set_fields(fields)

            shown = answer.edited_body if review.use.content == "body" else None
            await self._ask_stage(review, texts, shown, put, code=code)
        return self._headers, answer.edited_body

    def begin(self, status: int, headers: Headers) -> None:
        """A stream begins."""
        self._status, self._headers = status, headers

    def relabel(self, content_type: bytes) -> None:
        """Change the content type of an answer whose headers haven't left."""
        kept = [header for header in self._headers if header[0] != b"content-type"]
        self._headers = [*kept, (b"content-type", content_type)]

    @property
    def headers(self) -> Headers:
        """The answer's headers with the edits of the stages."""
        return self._headers

    async def push(self, data: bytes) -> AsyncIterator[bytes]:
        """Take the next bytes of the stream; yields bytes as soon as they may leave. Raises Withheld."""
        events = self._splitter.split_bytes(data)
        self._halves.mend_events(events)
        async for left in self._past(0, events):
            yield left
        for position, review in enumerate(self._blocking):
            if not review.given_up and self._splitter.size + review.window.size > self._most_held:
                async for left in self._past(position + 1, await self._give_up(review)):
                    yield left
        if self._splitter.size > self._most_held:
            async for left in self._past(0, self._splitter.rest()):
                yield left

    async def finish(self, data: bytes) -> AsyncIterator[bytes]:
        """Like `push`, for the last bytes of the stream."""
        events = [*self._splitter.split_bytes(data), *self._splitter.rest()]
        self._halves.mend_events(events)
        async for left in self._past(0, events):
            yield left
        for position, review in enumerate(self._blocking):
            if not review.given_up:
                async for left in self._past(position + 1, await self._decide(review, last=True)):
                    yield left

    async def given(self, status: int, headers: Headers, body: bytes, *, stream: bool) -> tuple[Headers, bytes]:
        """Headers and body that the client gets of an answer that is here as a whole, a stream too. Raises Withheld."""
        if not stream:
            return await self.whole(status, headers, body)
        self.begin(status, headers)
        if self.blocks:
            body = b"".join([piece async for piece in self.finish(body)])
        return self.headers, body

    def filtered(self) -> bytes:
        """The end of a stream whose rest is withheld."""
        return self._end.end_as_filtered()

    def note_sent_bytes(self, data: bytes) -> None:
        """These bytes are on their way to the client."""
        self._after.note_sent_bytes(data)

    async def after(self) -> tuple[StageReport, ...]:
        """Ask the stages that come after the last byte; returns their reports. Never raises."""
        return await self._after.ask_stages(self._headers)

    async def _past(self, position: int, events: list[StreamEvent]) -> AsyncIterator[bytes]:
        """Show the next stage the events that the stages before it let pass; yields the bytes that leave."""
        if position == len(self._blocking):
            for event in events:
                self._end.note_event(event)
            yield b"".join(event.encode() for event in events)
            return
        review = self._blocking[position]
        if review.use.content == "none" and not review.given_up:
            # It needs nothing of the answer, so nothing waits for more of it.
            await self._give_up(review)
        if review.given_up:
            review.edit_events(events)
            async for left in self._past(position + 1, events):
                yield left
            return
        for event in events:
            if not review.window.add_event(event):
                self._unread(review)
            if review.window.is_due:
                async for left in self._past(position + 1, await self._decide(review, last=False)):
                    yield left

    async def _give_up_all(self) -> None:
        for review in self._blocking:
            if not review.given_up:
                await self._give_up(review)

    async def _give_up(self, review: StageReview) -> list[StreamEvent]:
        """Skip a stage for which too many bytes would have to be held; returns the events that were held for it.

        Raises Withheld if it may not be skipped.
        """
        review.given_up = True
        if review.use.content == "none":  # it needs nothing of the answer
            return await self._decide(review, last=True)
        self._failed(review, NoVerdict(TOO_LARGE, 502, "answer_too_large"), 0.0)
        return review.window.release_events(last=True)

    async def _decide(self, review: StageReview, *, last: bool) -> list[StreamEvent]:
        window = review.window
        texts = window.held_texts() if review.use.content == "text" else ()
        body = window.encode_events() if review.use.content == "body" else None

        def put(edits: dict[str, str], fields: Fields) -> None:
            window.replace_texts(edits)
            review.fields += fields

        await self._ask_stage(review, texts, body, put, last=last)
        released = window.release_events(last=last)
        review.edit_events(released)
        return released

    async def _ask_stage(
        self,
        review: StageReview,
        texts: tuple[AnswerText, ...],
        body: bytes | None,
        put: Put,
        *,
        last: bool = True,
        code: str | None = None,
    ) -> None:
        """Ask the stage and apply its verdict. If it fails and may be skipped, nothing changes. Raises Withheld."""
        outcome = "answered" if code is None else "rejected"
        question = review.question(
            self._edge,
            status=self._status,
            headers=self._headers,
            texts=texts,
            body=body,
            outcome=outcome,
            code=code,
            last=last,
        )
        began = time.perf_counter()
        try:
            verdict = await self._reviewers.ask_stage(review.stage, question, self._record.traceparent)
            _change(verdict, texts, put)
        except NoVerdict as failure:
            self._failed(review, failure, time.perf_counter() - began)
            return
        self._reviewers.count_success(review.stage)
        outcome = OUTCOMES[verdict.action]
        self._report(review, outcome, time.perf_counter() - began, verdict.instance, verdict.note)
        if verdict.action == "block":
            withheld = Withheld(verdict.status, verdict.message, code=verdict.code)
            withheld.blocked = True
            raise withheld
        self._edit_headers(verdict.headers)

    def _failed(self, review: StageReview, failure: NoVerdict, took_s: float) -> None:
        self._reviewers.count_failure(review.stage, failure, self._record.request_id)
        skips = self._lenient or review.stage.on_error != "deny"
        self._report(review, "skipped" if skips else "failed", took_s, "", failure.what)
        if skips:
            if self._record.level == "full":
                self._record.level = "degraded"
                self._headers = [(name, b"degraded" if name == _LEVEL else value) for name, value in self._headers]
            return
        raise Withheld(
            failure.status,
            f"The stage {review.stage.service} {failure.what}.",
            type="server_error",
            code=failure.code,
            retry_after_s=1.0 if failure.status == 503 else None,
        )

    def _unread(self, review: StageReview) -> None:
        """Some part of the answer can't be shown to a stage that reads it: reported once an answer.

        Raises Withheld if that part may not pass unseen.
        """
        if not review.unread:
            review.unread = True
            self._failed(review, NoVerdict(UNREADABLE, 502, "answer_unreadable"), 0.0)

    def _report(self, review: StageReview, outcome: str, took_s: float, instance: str, note: str | None) -> None:
        self._trail.add_report(review, outcome, took_s, instance, note)
        self._record.stages = self._trail.list_reports()

    def _edit_headers(self, edits: tuple[HeaderEdit, ...]) -> None:
        if edits and not self.headers_left:
            self._headers = edited_answer_headers(self._headers, edits)


def _change(verdict: Verdict, shown: tuple[AnswerText, ...], put: Put) -> None:
    """Apply the changes of a verdict. Raises NoVerdict for a change that can't be made."""
    edits = {edit.part: edit.text for edit in verdict.texts}
    if edits.keys() - {text.part for text in shown}:
        raise NoVerdict("replaced a text that it didn't get", 500, "stage_failed")
    if verdict.action != "replace":
        edits = {}
    if verdict.action == "block" or not (edits or verdict.fields):
        return
    try:
        put(edits, verdict.fields)
    except ValueError as error:
        what = "replaced JSON by text that isn't JSON" if edits else "set fields of a response that isn't a JSON object"
        raise NoVerdict(what, 500, "stage_failed") from error
