"""Passes the paths of files and batches on to the service `batch`, as streams in both directions."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Final

from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.messages import MESSAGES
from pointsman_apis.passthrough import UNKNOWN
from pointsman_core.refusal import Refusal
from pointsman_edge.edge import Edge
from pointsman_edge.reviewing.response_stages import error_answer
from pointsman_edge.taking_in.request_headers import HOP_BY_HOP
from pointsman_frontend.adapters.http_turn import ClientGone, Turn, id_headers
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

if TYPE_CHECKING:
    import aiohttp

_MESSAGES: Final = "/v1/messages/batches"
_PATHS: Final = ("/v1/files", "/v1/batches", _MESSAGES)
_NOT_OURS: Final = frozenset({*(name.decode() for name in HOP_BY_HOP), "date", "server", "x-request-id"})
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})
_PIECE: Final = 65536
"""Bytes of an answer that are held at once."""
_QUIET_S: Final = 300.0
"""Longest pause of the service within an answer."""
_CONNECT_S: Final = 5.0

_log = Log("batch-door")


class BatchDoor:
    """The door of the service, before the application that serves all other paths. The service checks the senders of
    requests itself, by the headers that it gets from here."""

    def __init__(self, url: str, edge: Edge, others: Callable[[Turn], Coroutine[object, object, None]]) -> None:
        """`others` serves a request to another path."""
        self._url: Final = url.rstrip("/")
        self._headers: Final = edge.headers
        self._ids: Final = edge.ids
        self._others: Final = others
        self._session: aiohttp.ClientSession | None = None
        self._missing: Final = Missing(_log)

    def __call__(self, turn: Turn) -> Coroutine[object, object, None]:
        """Serve one request."""
        target = turn.target
        ours = target.route is None and target.path.startswith(_PATHS) and _is_ours(target.path)
        return self._relay(turn) if ours else self._others(turn)

    async def _relay(self, turn: Turn) -> None:
        """Have the service answer a request."""
        import aiohttp

        from pointsman_runtime.reaching.http_names import http_connector

        turn.ids = id_headers(self._ids.choose_id(turn.headers, ()))
        api = MESSAGES if turn.target.path.startswith(_MESSAGES) else UNKNOWN
        try:
            read = self._headers.read(turn.headers, trusted=turn.wire.trusted)
            headers = {name: value for name, value in read.stages.items() if name != "host"}
            if read.content_length is not None:
                headers["content-length"] = str(read.content_length)
            session = self._session
            if session is None:
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_QUIET_S)
                session = self._session = aiohttp.ClientSession(
                    connector=http_connector(limit=0), timeout=timeout, auto_decompress=False
                )
            query = turn.target.query.decode("ascii", "replace")
            url = f"{self._url}{turn.target.raw_path.decode('ascii')}{f'?{query}' if query else ''}"
            data = None if turn.method in _BODILESS else _pieces(turn)
            async with session.request(turn.method, url, data=data, headers=headers, allow_redirects=False) as answer:
                await self._pass_on(turn, answer)
            self._missing.note_recovery("the batch service")
        except ClientGone:
            return
        except Refusal as refusal:
            await turn.answer(refusal.status, *error_answer(refusal, api))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if turn.disconnected:
                return
            self._missing.note_missing("the batch service", error)
            if turn.started:
                # The answer breaks off: its client sees that it isn't complete.
                turn.wire.close()
                turn.disconnect()
                return
            message = "The batch service can't be reached at the moment; try again shortly."
            refusal = Refusal(503, message, type=SERVER_ERROR, code="batch_unavailable", retry_after_s=2.0)
            await turn.answer(refusal.status, *error_answer(refusal, api))

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def _pass_on(self, turn: Turn, answer: "aiohttp.ClientResponse") -> None:
        headers = [
            (name.lower(), value)
            for name, value in answer.raw_headers
            if name.decode("ascii", "replace").lower() not in _NOT_OURS
        ]
        await turn.start(answer.status, headers)
        async for piece in answer.content.iter_chunked(_PIECE):
            if turn.disconnected:
                return
            await turn.write(piece)
        await turn.end()


def _is_ours(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in _PATHS)


async def _pieces(turn: Turn) -> AsyncIterator[bytes]:
    while piece := await turn.read():
        yield piece
