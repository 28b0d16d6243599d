"""Runs the stages on the way back for one answer: those that the client waits for, in order, and those after it."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from pointsman_apis import named
from pointsman_apis.answers import Reading, read
from pointsman_apis.streams import EventSplitter, StreamEvent
from pointsman_apis.texts import Slot
from pointsman_contracts.journey import AFTER, BodyEdit, HeaderEdit, Stage, StageReport
from pointsman_contracts.response_stage import AnswerText, Verdict
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.after_answer import AfterAnswer
from pointsman_edge.reviewing.gate import OUTCOMES, Gate, due_ms
from pointsman_edge.reviewing.reviewing import Shown, Surrounding, review_of
from pointsman_edge.reviewing.reviews import TOO_LARGE, UNREADABLE, NoVerdict, Reviewers
from pointsman_edge.reviewing.stage_trail import StageTrail
from pointsman_edge.reviewing.whole_answer import WholeAnswer
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.telling.exchange import Exchange

_LEVEL: Final = b"x-pointsman-level"
_NO_TEXT: Final = Reading([], whole=True)

Headers = list[tuple[bytes, bytes]]
Fields = tuple[BodyEdit, ...]
Put = Callable[[dict[str, str], Fields], None]
"""Puts texts, by part, and fields of the top level in place, all or none. Raises ValueError."""


class Withheld(Refusal):
    """A stage on the way back doesn't let the answer pass."""

    blocked = False
    """The stage said so; otherwise it failed, and may not be skipped."""


class WayBack:
    """One answer. Either `whole` once, or `begin`, `push` and `finish` for a stream; `after` in any case."""

    def __init__(
        self,
        stages: Sequence[Stage],
        reviewers: Reviewers,
        exchange: Exchange,
        surrounding: Surrounding,
        most_held: int,
    ) -> None:
        """`most_held`: bytes of the answer that are held for stages which the client waits for."""
        self._api = named(exchange.api)
        gates = [Gate(position, stage, self._api) for position, stage in enumerate(stages)]
        self._blocking = [gate for gate in gates if gate.use.mode != AFTER]
        self._after = AfterAnswer([gate for gate in gates if gate.use.mode == AFTER], reviewers, exchange, surrounding)
        self._most_held = most_held
        self._gathered: list[bytes] = []
        self._gathered_size = 0
        self.blocks = bool(self._blocking)
        """Whether the client waits for a stage."""
        self._reviewers = reviewers
        self._exchange = exchange
        self._surrounding = surrounding
        self._trail = StageTrail()
        self._splitter = EventSplitter()
        self._end = self._api.end()
        self._headers: Headers = []
        self._status = 0
        self._lenient = False
        self.headers_left = False
        """Headers are out; edits count no more."""

    @property
    def needs_all(self) -> bool:
        """Whether a stage that the client waits for sees the answer whole."""
        return any(gate.use.mode == "buffer" and gate.use.content != "none" for gate in self._blocking)

    @property
    def keeps(self) -> bool:
        """Whether a stage gets to see what has left."""
        return self._after.keeps

    @property
    def follows(self) -> bool:
        """Whether a stage is asked after the last byte."""
        return self._after.follows

    async def gather(self, data: bytes) -> bytes:
        """Hold the next bytes of an answer that isn't streamed, for `gathered`. Returns what leaves now: nothing,
        unless the answer is too large to be held and every stage may be skipped. Raises Withheld where one may not."""
        self._gathered.append(data)
        self._gathered_size += len(data)
        if self._gathered_size <= self._most_held:
            return b""
        await self._give_up_all()
        return self.gathered()

    def gathered(self) -> bytes:
        """What `gather` holds, which it doesn't from now on."""
        held = b"".join(self._gathered)
        self._gathered = []
        return held

    async def whole(self, status: int, headers: Headers, body: bytes, code: str | None = None) -> tuple[Headers, bytes]:
        """What the client gets of an answer that isn't streamed. `code`: it is an error of the gateway's own, which no
        stage's failing holds up. Raises Withheld."""
        self._status, self._headers = status, headers
        self._lenient = code is not None
        if len(body) > self._most_held:
            await self._give_up_all()
        answer = WholeAnswer(body)
        for gate in self._blocking:
            if gate.given_up:
                continue
            reading = _NO_TEXT
            if gate.use.content == "text":
                document = answer.document
                if document is not None:
                    reading = read(self._api, document)
                if not reading.whole or (document is None and body.strip()):
                    self._unread(gate)
                    continue
            slots = reading.slots
            texts = tuple(AnswerText(part=slot.part, kind=slot.kind, text=slot.text) for slot in slots)

            def put(edits: dict[str, str], fields: Fields, slots: list[Slot] = slots) -> None:
                if edits:
                    answer.put([(slot, edits[slot.part]) for slot in slots if slot.part in edits])
                if fields:
                    answer.set(fields)

            shown = answer.body if gate.use.content == "body" else None
            await self._ask(gate, texts, shown, put, code=code)
        return self._headers, answer.body

    def begin(self, status: int, headers: Headers) -> None:
        """A stream begins."""
        self._status, self._headers = status, headers

    @property
    def headers(self) -> Headers:
        """As the stages left them."""
        return self._headers

    async def push(self, data: bytes) -> AsyncIterator[bytes]:
        """The next bytes of the stream; yields what may leave, as soon as it may. Raises Withheld."""
        async for left in self._past(0, self._splitter.feed(data)):
            yield left
        for position, gate in enumerate(self._blocking):
            if not gate.given_up and self._splitter.size + gate.window.size > self._most_held:
                async for left in self._past(position + 1, await self._give_up(gate)):
                    yield left
        if self._splitter.size > self._most_held:
            async for left in self._past(0, self._splitter.rest()):
                yield left

    async def finish(self, data: bytes) -> AsyncIterator[bytes]:
        """As `push`, for the last bytes of the stream."""
        async for left in self._past(0, [*self._splitter.feed(data), *self._splitter.rest()]):
            yield left
        for position, gate in enumerate(self._blocking):
            if not gate.given_up:
                async for left in self._past(position + 1, await self._decide(gate, last=True)):
                    yield left

    async def given(self, status: int, headers: Headers, body: bytes, *, stream: bool) -> tuple[Headers, bytes]:
        """What the client gets of an answer that is here as a whole, a stream too. Raises Withheld."""
        if not stream:
            return await self.whole(status, headers, body)
        self.begin(status, headers)
        if self.blocks:
            body = b"".join([piece async for piece in self.finish(body)])
        return self.headers, body

    def filtered(self) -> bytes:
        """The end of a stream whose rest is withheld."""
        return self._end.filtered()

    def left(self, data: bytes) -> None:
        """These bytes are on their way to the client."""
        self._after.left(data)

    async def after(self) -> tuple[StageReport, ...]:
        """Ask the stages that come after the last byte. Never raises; what they said."""
        return await self._after.ask(self._headers)

    async def _past(self, position: int, events: list[StreamEvent]) -> AsyncIterator[bytes]:
        """What leaves of events that the stages before this one let pass."""
        if position == len(self._blocking):
            for event in events:
                self._end.saw(event)
            yield b"".join(event.encode() for event in events)
            return
        gate = self._blocking[position]
        if gate.use.content == "none" and not gate.given_up:
            # It needs nothing of the answer, so nothing waits for more of it.
            await self._give_up(gate)
        if gate.given_up:
            gate.alter(events)
            async for left in self._past(position + 1, events):
                yield left
            return
        for event in events:
            if not gate.window.add(event):
                self._unread(gate)
            if gate.window.due:
                async for left in self._past(position + 1, await self._decide(gate, last=False)):
                    yield left

    async def _give_up_all(self) -> None:
        for gate in self._blocking:
            if not gate.given_up:
                await self._give_up(gate)

    async def _give_up(self, gate: Gate) -> list[StreamEvent]:
        """Go on without a stage for which more would have to be held than may be; returns what it held of a stream.
        Raises Withheld where it may not be skipped."""
        gate.given_up = True
        if gate.use.content == "none":  # it needs nothing of the answer
            return await self._decide(gate, last=True)
        self._failed(gate, NoVerdict(TOO_LARGE, 502, "answer_too_large"), 0.0)
        return gate.window.release(last=True)

    async def _decide(self, gate: Gate, *, last: bool) -> list[StreamEvent]:
        window = gate.window
        texts = window.texts() if gate.use.content == "text" else ()
        body = window.encode() if gate.use.content == "body" else None

        def put(edits: dict[str, str], fields: Fields) -> None:
            window.replace(edits)
            gate.fields += fields

        await self._ask(gate, texts, body, put, last=last)
        released = window.release(last=last)
        gate.alter(released)
        return released

    async def _ask(
        self,
        gate: Gate,
        texts: tuple[AnswerText, ...],
        body: bytes | None,
        put: Put,
        *,
        last: bool = True,
        code: str | None = None,
    ) -> None:
        """Have the stage asked and what it says done. It changes nothing where it fails and may be skipped. Raises
        Withheld."""
        told = "answered" if code is None else "rejected"
        shown = Shown(self._status, self._headers, texts, body, gate.next_number(), last, told, code)
        review = review_of(self._exchange, self._surrounding, gate.stage, shown, due_ms(gate.stage))
        began = time.perf_counter()
        try:
            verdict = await self._reviewers.ask(gate.stage, review, self._surrounding.traceparent)
            _change(verdict, texts, put)
        except NoVerdict as failure:
            self._failed(gate, failure, time.perf_counter() - began)
            return
        self._reviewers.worked(gate.stage)
        outcome = OUTCOMES[verdict.action]
        self._report(gate, outcome, time.perf_counter() - began, verdict.instance, verdict.note)
        if verdict.action == "block":
            withheld = Withheld(verdict.status, verdict.message, code=verdict.code)
            withheld.blocked = True
            raise withheld
        self._edit_headers(verdict.headers)

    def _failed(self, gate: Gate, failure: NoVerdict, took_s: float) -> None:
        self._reviewers.failed(gate.stage, failure, self._exchange.request_id)
        skips = self._lenient or gate.stage.on_error != "deny"
        self._report(gate, "skipped" if skips else "failed", took_s, "", failure.what)
        if skips:
            if self._exchange.level == "full":
                self._exchange.level = "degraded"
                self._headers = [(name, b"degraded" if name == _LEVEL else value) for name, value in self._headers]
            return
        raise Withheld(
            failure.status,
            f"The stage {gate.stage.service} {failure.what}.",
            type="server_error",
            code=failure.code,
            retry_after_s=1.0 if failure.status == 503 else None,
        )

    def _unread(self, gate: Gate) -> None:
        """Something of the answer can't be shown to a stage that looks. Raises Withheld where it may not pass unseen;
        elsewhere that is said once of an answer."""
        if not gate.unread:
            gate.unread = True
            self._failed(gate, NoVerdict(UNREADABLE, 502, "answer_unreadable"), 0.0)

    def _report(self, gate: Gate, outcome: str, took_s: float, instance: str, note: str | None) -> None:
        self._trail.add(gate.position, gate.stage, outcome, took_s, instance, note)
        self._exchange.stages = self._trail.reports()

    def _edit_headers(self, edits: tuple[HeaderEdit, ...]) -> None:
        if edits and not self.headers_left:
            self._headers = edited_answer_headers(self._headers, edits)


def _change(verdict: Verdict, shown: tuple[AnswerText, ...], put: Put) -> None:
    """Put in place what a verdict changes. Raises NoVerdict where the stage means to change what the client would get
    unchanged."""
    edits = {edit.part: edit.text for edit in verdict.texts}
    if edits.keys() - {text.part for text in shown}:
        raise NoVerdict("replaced a text that it wasn't shown", 500, "stage_failed")
    if verdict.action != "replace":
        edits = {}
    if verdict.action == "block" or not (edits or verdict.fields):
        return
    try:
        put(edits, verdict.fields)
    except ValueError as error:
        what = "replaced JSON by something else" if edits else "set fields of what is no JSON object"
        raise NoVerdict(what, 500, "stage_failed") from error
