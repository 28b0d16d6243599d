"""The client of an HTTP request, as the rest of the edge sees it."""

from typing import Protocol

from pointsman_apis.api import Api
from pointsman_apis.passthrough import UNKNOWN
from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.response_stages import error_answer
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_frontend.adapters.http_turn import Turn

JSON = (b"content-type", b"application/json")
Headers = list[tuple[bytes, bytes]]


class ResponseWriter(Protocol):
    """Takes the answer for a client: `answer`, or `start`, `write` and `end`."""

    @property
    def started(self) -> bool:
        """Whether status and headers have left."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they may leave with the first bytes of the body."""
        ...

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        ...

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        ...

    async def fail(self, event: bytes) -> None:
        """The last event of a stream that can't go on."""
        ...

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        ...


class Client:
    """Writes to the client. Every answer carries the request's id."""

    answer_headers: tuple[HeaderEdit, ...] = ()
    """Edits of the headers of any answer."""
    status: int | None = None
    started = False
    ended = False
    bytes_out = 0

    def __init__(self, turn: Turn, request_id: str, api: Api = UNKNOWN) -> None:
        self._turn = turn
        self._api = api
        own_id = request_id.encode("ascii")
        self._ids: Headers = [(b"x-request-id", own_id)]
        if api.request_id_header is not None:
            self._ids.append((api.request_id_header, own_id))

    async def start(self, status: int, headers: Headers) -> None:
        """As `ResponseWriter.start`: they leave at once."""
        if self._turn.wire.paused:
            await self._turn.wire.writable()
        if self.answer_headers:
            headers = edited_answer_headers(headers, self.answer_headers)
        self._turn.start(status, [*headers, *self._ids])
        self.started = True
        self.status = status

    async def write(self, data: bytes) -> None:
        """As `ResponseWriter.write`."""
        if self._turn.wire.paused:
            await self._turn.wire.writable()
        self._turn.write(data)
        self.bytes_out += len(data)

    async def end(self, data: bytes = b"") -> None:
        """As `ResponseWriter.end`."""
        if self._turn.wire.paused:
            await self._turn.wire.writable()
        self._turn.end(data)
        self.bytes_out += len(data)
        self.ended = True

    async def fail(self, event: bytes) -> None:
        """As `ResponseWriter.fail`."""
        await self.end(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """As `ResponseWriter.answer`."""
        turn, size = self._turn, len(body)
        if turn.wire.paused:
            await turn.wire.writable()
        headers.append((b"content-length", b"%d" % size))
        if self.answer_headers:
            headers = edited_answer_headers(headers, self.answer_headers)
        headers += self._ids
        turn.answer(status, headers, body)
        self.started = self.ended = True
        self.status = status
        self.bytes_out += size

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error."""
        await self.answer(refusal.status, *error_answer(refusal, self._api))
