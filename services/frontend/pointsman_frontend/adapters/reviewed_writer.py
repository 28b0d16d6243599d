"""Has response stages review an answer before the client gets it."""

from collections.abc import AsyncIterator

from pointsman_edge.reviewing.answer_review import AnswerReview, Withheld
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.http_turn import Headers, Turn


class ReviewedWriter:
    """A `ResponseWriter` before a client. Every method raises Withheld once a stage withholds the answer; a stream that
    had begun has been ended by then."""

    __slots__ = ("_record", "_review", "_start", "_turn")

    def __init__(self, turn: Turn, review: AnswerReview, record: RequestRecord) -> None:
        self._turn = turn
        self._review = review
        self._record = record
        self._start: tuple[int, Headers] = (0, [])

    @property
    def started(self) -> bool:
        """Whether status and headers have left."""
        return self._turn.started

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they may leave with the first bytes of the body."""
        self._start = (status, headers)
        self._review.begin(status, headers)
        if not self._review.blocks:
            await self._turn.start(status, headers)

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        if not self._review.blocks:
            await self._out(data)
        elif self._record.stream:
            await self._let_out(self._review.push(data))
        else:
            await self._out(await self._review.gather(data))

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        review = self._review
        if review.blocks and not self._record.stream and not self.started:
            status, headers = self._start
            named = [header for header in headers if header[0] != b"content-length"]
            await self.answer(status, named, review.take_gathered() + data)
            return
        if review.blocks and self._record.stream:
            await self.write(data)
            await self._let_out(review.finish(b""))
            data = b""
        await self._out(data, last=True)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        headers, body = await self._review.whole(status, headers, body)
        self._review.note_sent_bytes(body)
        await self._turn.answer(status, headers, body)

    async def fail(self, event: bytes) -> None:
        """Like `ResponseWriter.fail`. Events that the stages haven't seen don't leave."""
        await self._turn.fail(event)

    async def _let_out(self, passed: AsyncIterator[bytes]) -> None:
        try:
            async for data in passed:
                await self._out(data)
        except Withheld as withheld:
            if self.started:
                end = self._review.filtered()
                if not withheld.blocked:
                    end = self._record.api.error_event(withheld)
                await self._turn.fail(end)
            raise

    async def _out(self, data: bytes, *, last: bool = False) -> None:
        if not data and not last:
            return
        if not self.started:
            await self._turn.start(self._start[0], self._review.headers)
        self._review.headers_left = True
        self._review.note_sent_bytes(data)
        await (self._turn.end(data) if last else self._turn.write(data))
