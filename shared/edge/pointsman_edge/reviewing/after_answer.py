"""Runs the stages that come after the last byte of an answer."""

import time
from collections.abc import Sequence
from typing import Final

from pointsman_apis import named
from pointsman_apis.answers import read
from pointsman_apis.streams import EventSplitter, unambiguous
from pointsman_contracts.journey import AnswerUse, StageReport
from pointsman_contracts.response_stage import AnswerText, ResponseReview
from pointsman_edge.reviewing.answer_window import AnswerWindow
from pointsman_edge.reviewing.gate import OUTCOMES, Gate, due_ms
from pointsman_edge.reviewing.reviewing import Shown, Surrounding, review_of
from pointsman_edge.reviewing.reviews import UNREADABLE, NoVerdict, Reviewers
from pointsman_edge.reviewing.stage_trail import StageTrail, in_shadow
from pointsman_edge.telling.exchange import Exchange

LARGEST: Final = 4 * 2**20
"""Bytes of an answer that are kept for stages which see it in the end."""


class AfterAnswer:
    """One answer, as the client gets it."""

    def __init__(
        self, gates: Sequence[Gate], reviewers: Reviewers, exchange: Exchange, surrounding: Surrounding
    ) -> None:
        self._gates = gates
        self._reviewers = reviewers
        self._exchange = exchange
        self._surrounding = surrounding
        self.follows = bool(gates)
        """Whether a stage is asked."""
        self.keeps = any(gate.use.content != "none" for gate in gates)
        """Whether a stage gets to see what has left."""
        self._kept: list[bytes] | None = []
        self._kept_size = 0

    def left(self, data: bytes) -> None:
        """These bytes are on their way to the client."""
        if self.keeps and self._kept is not None:
            self._kept_size += len(data)
            if self._kept_size > LARGEST:
                self._kept = None
            else:
                self._kept.append(data)

    async def ask(self, headers: list[tuple[bytes, bytes]]) -> tuple[StageReport, ...]:
        """Ask the stages, and tell each what those before it said. Never raises; what they said."""
        exchange = self._exchange
        trail = StageTrail()
        kept = b"".join(self._kept) if self._kept is not None else None
        for gate in self._gates:
            texts = self._texts(kept) if gate.use.content == "text" and kept is not None else ()
            if texts is None:
                self._failed(gate, NoVerdict(UNREADABLE, 502, "answer_unreadable"), 0.0, trail)
                continue
            shown = Shown(
                status=exchange.status,
                headers=headers,
                texts=texts,
                body=kept if gate.use.content == "body" else None,
                number=gate.next_number(),
                last=True,
                outcome=exchange.outcome or "",
                code=exchange.code,
                truncated=kept is None and gate.use.content != "none",
                usage=exchange.usage,
                stages=(*exchange.stages, *trail.reports()),
            )
            review = review_of(exchange, self._surrounding, gate.stage, shown, due_ms(gate.stage))
            await self._hear(gate, review, trail)
        return tuple(
            in_shadow(report) if gate.stage.mode == "shadow" else report
            for gate, report in zip(self._gates, trail.reports(), strict=True)
        )

    async def _hear(self, gate: Gate, review: ResponseReview, trail: StageTrail) -> None:
        """What a stage says."""
        began = time.perf_counter()
        try:
            verdict = await self._reviewers.ask(gate.stage, review, self._surrounding.traceparent)
        except NoVerdict as failure:
            self._failed(gate, failure, time.perf_counter() - began, trail)
            return
        self._reviewers.worked(gate.stage)
        took_s, outcome = time.perf_counter() - began, OUTCOMES[verdict.action]
        trail.add(gate.position, gate.stage, outcome, took_s, verdict.instance, verdict.note)

    def _failed(self, gate: Gate, failure: NoVerdict, took_s: float, trail: StageTrail) -> None:
        self._reviewers.failed(gate.stage, failure, self._exchange.request_id)
        trail.add(gate.position, gate.stage, "failed", took_s, "", failure.what)

    def _texts(self, body: bytes) -> tuple[AnswerText, ...] | None:
        """The texts of everything that left; None where something of it can't be read."""
        api = named(self._exchange.api)
        if not self._exchange.stream:
            if not body.strip():
                return ()
            document = unambiguous(body)
            reading = read(api, document) if document is not None else None
            if reading is None or not reading.whole:
                return None
            return tuple(AnswerText(part=slot.part, kind=slot.kind, text=slot.text) for slot in reading.slots)
        splitter = EventSplitter()
        window = AnswerWindow(api, AnswerUse(mode="buffer", content="text"))
        whole = [window.add(event) for event in (*splitter.feed(body), *splitter.rest())]
        return window.texts() if all(whole) else None
