"""Holds the answer of a cascade's model until it is judged, and gives answers that a stage had."""

from collections.abc import Callable
from typing import Final

from pointsman_apis.answer_signs import AnswerSigns, SignReader, without_logprobs
from pointsman_contracts.cascade import CONFIDENT, UNKNOWN, AnswerConfidence
from pointsman_contracts.reply import Answer
from pointsman_edge.sending.own_answers import answer_body, answer_headers
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import ResponseWriter

MARK: Final = b"x-pointsman-cascade"
"""The verdict on the answer that the client gets."""
_ERROR: Final = 400
_TOO_LARGE: Final = AnswerConfidence(verdict=UNKNOWN, why="too large to be held")

Judge = Callable[[SignReader], AnswerConfidence]


class NotConfident(Exception):
    """A part of the answer has shown that it isn't to be given."""

    def __init__(self, confidence: AnswerConfidence) -> None:
        super().__init__(confidence.why)
        self.confidence = confidence


class HeldAnswer:
    """A `ResponseWriter` that holds the answer for its judgement."""

    def __init__(
        self,
        client: ResponseWriter,
        record: RequestRecord,
        judge: Judge,
        *,
        hold_tokens: int | None,
        accepts: bool,
        strips: bool,
    ) -> None:
        """`judge`: of a part of a stream; `accepts`: an answer of unknown confidence is given; `strips`: log
        probabilities weren't asked for by the client."""
        self._client: Final = client
        self._record: Final = record
        self._judge: Final = judge
        self._hold_tokens: Final = hold_tokens
        self._accepts: Final = accepts
        self._strips: Final = strips
        self._pieces: list[bytes] = []
        self._size = 0
        self._headers: Headers = []
        self._streams = False
        self._reader: SignReader | None = None
        self.status = 0
        self.complete = False
        self.confidence: AnswerConfidence | None = None
        """The confidence of the part by which it was judged: it leaves as it comes."""

    @property
    def started(self) -> bool:
        """Whether status and headers have left."""
        return self._client.started

    @property
    def body(self) -> bytes:
        """The answer, as far as it is held."""
        return b"".join(self._pieces)

    @property
    def headers(self) -> Headers:
        """Those of the answer, without its length."""
        return self._headers

    @property
    def is_error(self) -> bool:
        """Whether it is an error, by its status."""
        return self.status >= _ERROR

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers of an answer; of another engine's, if the one before broke off."""
        self.status, self._streams = status, self._record.stream
        self._headers = [header for header in headers if header[0] != b"content-length"]
        self._pieces, self._size, self.complete = [], 0, False
        self._reader = SignReader(self._record.api, stream=self._streams)

    async def write(self, data: bytes) -> None:
        """A piece of the body. Raises NotConfident once that is certain."""
        if self.confidence is not None:
            await self._client.write(self._stripped(data))
            return
        self._hold(data)
        reader = self._reader
        due = self._size > self._record.policy.limits.max_held_answer
        if self._streams and reader is not None and self._hold_tokens is not None:
            due = due or reader.signs.events >= self._hold_tokens
        if not due or reader is None:
            return
        found = self._judge(reader) if self._streams else _TOO_LARGE
        if found.verdict != CONFIDENT and not (found.verdict == UNKNOWN and self._accepts):
            raise NotConfident(found)
        self.confidence = found
        await self._client.start(self.status, marked(self._headers, found.verdict))
        await self._client.write(self._stripped(self.body))
        self._pieces = []

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        if self.confidence is not None:
            await self._client.end(self._stripped(data))
            return
        self._hold(data)
        self.complete = True

    async def fail(self, event: bytes) -> None:
        """Send the last event of a stream that can't go on after a part of it has left."""
        await self._client.fail(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        await self.start(status, headers)
        self._streams = False
        self._reader = SignReader(self._record.api, stream=False)
        self._hold(body)
        self.complete = True

    async def give(self, verdict: str) -> None:
        """Give the client the whole answer."""
        headers, body = marked(self._headers, verdict), self._stripped(self.body)
        if self._streams:
            await self._client.start(self.status, headers)
            await self._client.end(body)
        else:
            await self._client.answer(self.status, headers, body)

    def read_signs(self) -> AnswerSigns:
        """The signs of the answer, as far as it has come."""
        if self._reader is None:
            self._reader = SignReader(self._record.api, stream=self._streams)
        if not self._streams:
            self._reader.read_bytes(self.body)
        return self._reader.signs

    def _hold(self, data: bytes) -> None:
        if data:
            self._pieces.append(data)
            self._size += len(data)
            if self._streams and self._reader is not None:
                self._reader.read_bytes(data)

    def _stripped(self, data: bytes) -> bytes:
        return without_logprobs(data, stream=self._streams) if self._strips and not self.is_error else data


class PassedAnswer:
    """A `ResponseWriter` of a cascade's last model: its answer leaves as it comes, its errors are held."""

    def __init__(self, client: ResponseWriter, verdict: str) -> None:
        self._client: Final = client
        self._verdict: Final = verdict
        self.error: tuple[int, Headers, bytes] | None = None

    @property
    def started(self) -> bool:
        """Whether status and headers have left."""
        return self._client.started

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they may leave with the first bytes of the body."""
        await self._client.start(status, marked(headers, self._verdict))

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        await self._client.write(data)

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        await self._client.end(data)

    async def fail(self, event: bytes) -> None:
        """The last event of a stream that can't go on."""
        await self._client.fail(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        if status >= _ERROR:
            self.error = status, headers, body
        else:
            await self._client.answer(status, marked(headers, self._verdict), body)

    async def give_error(self) -> None:
        """Give the client the error after all."""
        if self.error is not None:
            await self._client.answer(*self.error)


async def give_stored(client: ResponseWriter, answer: Answer, verdict: str) -> None:
    """Give the client the answer of a stage, a stream as a stream. `verdict`: of a cascade, or empty."""
    headers, body = answer_headers(answer), answer_body(answer)
    if verdict:
        headers = marked(headers, verdict)
    if answer.stream:
        await client.start(answer.status, [*headers, (b"x-accel-buffering", b"no")])
        await client.end(body)
    else:
        await client.answer(answer.status, headers, body)


def marked(headers: Headers, verdict: str) -> Headers:
    return [*headers, (MARK, verdict.encode())]
