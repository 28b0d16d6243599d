"""The client of an HTTP request, as the rest of the edge sees it."""

from typing import Protocol

from pointsman_apis.api import Api
from pointsman_apis.passthrough import UNKNOWN
from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.response_stages import error_answer
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_runtime.service.http_server import Send

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

    __slots__ = ("_api", "_ids", "_send", "answer_headers", "bytes_out", "ended", "started", "status")

    def __init__(self, send: Send, request_id: str, api: Api = UNKNOWN) -> None:
        self._send = send
        self._api = api
        own_id = request_id.encode("ascii")
        self._ids: Headers = [(b"x-request-id", own_id)]
        if api.request_id_header is not None:
            self._ids.append((api.request_id_header, own_id))
        self.answer_headers: tuple[HeaderEdit, ...] = ()
        """Edits of the headers of any answer."""
        self.status: int | None = None
        self.started = False
        self.ended = False
        self.bytes_out = 0

    async def start(self, status: int, headers: Headers) -> None:
        """As `ResponseWriter.start`: they leave at once."""
        if self.answer_headers:
            headers = edited_answer_headers(headers, self.answer_headers)
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._ids]})
        self.started = True
        self.status = status

    async def write(self, data: bytes) -> None:
        """As `ResponseWriter.write`."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.bytes_out += len(data)

    async def end(self, data: bytes = b"") -> None:
        """As `ResponseWriter.end`."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self.bytes_out += len(data)
        self.ended = True

    async def fail(self, event: bytes) -> None:
        """As `ResponseWriter.fail`."""
        await self.end(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """As `ResponseWriter.answer`."""
        headers.append((b"content-length", b"%d" % len(body)))
        await self.start(status, headers)
        await self.end(body)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error."""
        await self.answer(refusal.status, *error_answer(refusal, self._api))
