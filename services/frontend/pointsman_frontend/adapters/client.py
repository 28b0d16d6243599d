"""The client as the rest of the edge sees it."""

from pointsman_apis import named
from pointsman_apis.errors import error_headers
from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_runtime.service.http_server import Send

JSON = (b"content-type", b"application/json")
Headers = list[tuple[bytes, bytes]]


class Client:
    """Who asked, and on which API. Every answer carries the request's id."""

    __slots__ = ("_api", "_ids", "_send", "answer_headers", "bytes_out", "ended", "started", "status")

    def __init__(self, send: Send, request_id: str, api: str = "") -> None:
        self._send = send
        self._api = named(api)
        own_id = request_id.encode("ascii")
        self._ids: Headers = [(b"x-request-id", own_id)]
        if self._api.request_id_header is not None:
            self._ids.append((self._api.request_id_header, own_id))
        self.answer_headers: tuple[HeaderEdit, ...] = ()
        """What the stages change in the headers of whatever is answered."""
        self.status: int | None = None
        self.started = False
        """Status and headers are out."""
        self.ended = False
        self.bytes_out = 0

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        if self.answer_headers:
            headers = edited_answer_headers(headers, self.answer_headers)
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._ids]})
        self.started = True
        self.status = status

    async def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.bytes_out += len(data)

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self.bytes_out += len(data)
        self.ended = True

    async def fail(self, event: bytes) -> None:
        """Send the last word of a stream that can't go on."""
        await self.end(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        headers.append((b"content-length", b"%d" % len(body)))
        await self.start(status, headers)
        await self.end(body)

    async def refuse(self, refusal: Refusal, headers: Headers | None = None) -> None:
        """Send an error."""
        body = self._api.error(refusal)
        await self.answer(refusal.status, [JSON, *error_headers(refusal), *(headers or ())], body)
