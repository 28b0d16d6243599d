"""An answer through Envoy that response stages review: no byte passes before they let it."""

from collections.abc import AsyncIterator, Callable

from pointsman_edge.reviewing.answer_review import AnswerReview, Withheld
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.duplex_answer import DuplexAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.domain.envoy_events import BodyMode
from pointsman_epp_adapter.domain.mutation import Header, header_changes


class ReviewedAnswer:
    """One answer. `piece` raises Withheld while none of it is out; a stream that had begun ends in the words of its
    API, and later pieces are dropped."""

    def __init__(
        self,
        review: AnswerReview,
        record: RequestRecord,
        stream: Stream,
        mode: BodyMode,
        ended: Callable[[], None],
        way: DuplexAnswer | None,
    ) -> None:
        """`mode`: how Envoy sends the body; `ended` is called before Envoy gets the end of the answer, after which it
        may close the stream; `way`: the answer's in full duplex."""
        self._review = review
        self._record = record
        self._stream = stream
        self._mode = mode
        self._ended = ended
        self._way = way
        self._status = 0
        self._told: list[Header] = []
        """The headers as Envoy has them."""
        self._head_waits = way is not None
        self.bytes_out = 0
        self._cut = False
        self.withholds = False
        """The stream has been ended for the client while the engine still sends: those bytes must not pass."""

    async def begin_answer(self, status: int, sent: list[Header], headers: list[Header]) -> None:
        """The head: `sent` by the engine, `headers` for the client. In full duplex its answer waits for the stages."""
        self.expect_answer(status, sent, headers)
        if self._way is None:
            changes = header_changes(sent, self._headers())
            self._told = self._headers()
            await self._stream.write(wire.response_head(changes, self._mode))
            self._review.headers_left = self._mode is not BodyMode.BUFFERED

    def expect_answer(self, status: int, sent: list[Header], headers: list[Header]) -> None:
        """Like `begin`, of an answer in full duplex."""
        self._status, self._told = status, sent
        self._review.begin(status, headers)

    def let_head_out(self) -> bool:
        """Have the head leave with the next bytes, whatever they are. False where it has no way of its own."""
        if self._way is None or self._cut:
            return False
        self._begin_way(self._way)
        return True

    def change_content_type(self, content_type: bytes) -> None:
        """The answer has another content type than its head said; the headers haven't left."""
        self._review.relabel(content_type)

    async def write_piece(self, data: bytes, *, last: bool, end: bool) -> None:
        """A piece of the body. `last`: nothing of the body follows; `end`: no trailers either."""
        if self._cut:
            self.withholds = not last
            await self._out(b"", last=last, end=end)
        elif not self._record.stream:
            await self._document(data, last=last, end=end)
        else:
            await self._events(self._review.finish(data) if last else self._review.push(data), last=last, end=end)

    async def fail_stream(self, event: bytes, *, last: bool) -> bool:
        """The rest won't come: end a stream with `event`. False if none of it has left, so that the client can get an
        error instead. `last`: Envoy has nothing more either."""
        if not self._record.stream or self._head_waits or (self._mode is BodyMode.BUFFERED and not self.bytes_out):
            return False
        self._cut = True
        self.withholds = self._way is None and not last
        await self._out(event, last=False, end=True)
        return True

    async def _document(self, data: bytes, *, last: bool, end: bool) -> None:
        review = self._review
        body = await review.gather(data)
        if last and not body and not self.bytes_out:
            _, body = await review.whole(self._status, review.headers, review.take_gathered())
        await self._out(body, last=last, end=end)

    async def _events(self, passed: AsyncIterator[bytes], *, last: bool, end: bool) -> None:
        out: list[bytes] = []
        try:
            async for data in passed:
                if self._way is not None:
                    await self._out(data, last=False, end=False)
                else:
                    out.append(data)  # a piece has one answer
        except Withheld as withheld:
            if not out and (self._head_waits or (self._mode is BodyMode.BUFFERED and not self.bytes_out)):
                raise
            self._cut = True
            # In full duplex the answer ends with this; otherwise every further piece wants an answer.
            self.withholds = self._way is None and not end
            self._record.end("blocked", self._status, withheld.message, withheld.told_code)
            out.append(self._review.filtered() if withheld.blocked else self._record.api.error_event(withheld))
            end = True
        await self._out(b"".join(out), last=last, end=end)

    async def _out(self, data: bytes, *, last: bool, end: bool) -> None:
        """Answer a piece with other bytes or, in full duplex, send further ones."""
        self.bytes_out += len(data)
        if last:
            self._ended()
        if data:
            self._review.note_sent_bytes(data)
        way = self._way
        if way is None:
            changes = header_changes(self._told, self._headers()) if self._mode is BodyMode.BUFFERED else None
            await self._stream.write(wire.response_piece(data, changes))
            return
        if not data and not end:
            return
        self._begin_way(way)
        await way.write(data, end=end)

    def _begin_way(self, way: DuplexAnswer) -> None:
        if self._head_waits:
            self._head_waits = False
            self._review.headers_left = True
            way.begin_answer(wire.response_head(header_changes(self._told, self._headers()), None))

    def _headers(self) -> list[Header]:
        return edited_answer_headers(self._review.headers, self._record.answer_headers)
