"""The HTTP door for files and batches. Frontends pass these paths on to it; clients may reach it themselves."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import orjson
from nats.errors import Error as NatsError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pointsman_apis.errors import anthropic_error, error_headers, openai_error
from pointsman_batch.adapters.asker import Asker, Sender
from pointsman_batch.adapters.files import ContentLost
from pointsman_batch.domain.asked import read_page, read_wanted_batch
from pointsman_batch.domain.objects import (
    BATCHES_PATH,
    batch_object,
    file_object,
    list_object,
    message_batch_object,
)
from pointsman_batch.handlers import Handlers
from pointsman_core.refusal import Refusal
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.telling.logs import Log

FILES_PATH: Final = "/v1/files"
OPENAI_PATH: Final = "/v1/batches"
_MOST_BODY: Final = 65536
_OPENAI: Final = "openai"
_ANTHROPIC: Final = "anthropic"

Answer = Callable[[Request, Sender], Awaitable[Response]]

_log = Log("door")


class BatchApi:
    """Checks senders and calls the handlers."""

    def __init__(self, asker: Asker, handlers: Handlers, longest_window_s: float) -> None:
        self._asker: Final = asker
        self._handlers: Final = handlers
        self._longest_window_s: Final = longest_window_s
        routes = [
            self._route(FILES_PATH, "POST", self._upload),
            self._route(FILES_PATH, "GET", self._list_files),
            self._route(f"{FILES_PATH}/{{id}}", "GET", self._file),
            self._route(f"{FILES_PATH}/{{id}}", "DELETE", self._delete_file),
            self._route(f"{FILES_PATH}/{{id}}/content", "GET", self._content),
            self._route(OPENAI_PATH, "POST", self._create),
            self._route(OPENAI_PATH, "GET", self._list),
            self._route(f"{OPENAI_PATH}/{{id}}", "GET", self._batch),
            self._route(f"{OPENAI_PATH}/{{id}}/cancel", "POST", self._cancel),
            self._route(BATCHES_PATH, "POST", self._create_messages),
            self._route(BATCHES_PATH, "GET", self._list_messages),
            self._route(f"{BATCHES_PATH}/{{id}}", "GET", self._message_batch),
            self._route(f"{BATCHES_PATH}/{{id}}", "DELETE", self._delete_messages),
            self._route(f"{BATCHES_PATH}/{{id}}/cancel", "POST", self._cancel_messages),
            self._route(f"{BATCHES_PATH}/{{id}}/results", "GET", self._results),
        ]
        self.app: Final = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method})

    def _route(self, path: str, method: str, answer: Answer) -> Route:
        return Route(path, partial(self._answer, answer), methods=[method])

    async def _answer(self, answer: Answer, request: Request) -> Response:
        try:
            peer = request.client.host if request.client is not None else ""
            sender = await self._asker.identify(request.headers.raw, peer)
            return await answer(request, sender)
        except Refusal as refusal:
            return _refused(request, refusal)
        except ClientDisconnect:
            return Response(status_code=499)
        except (NatsError, TimeoutError, OSError, ContentLost) as error:
            _log.warning("store_unavailable", problem=jetstream_words(error), path=request.url.path[:64])
            message = "The files and batches of this gateway can't be reached at the moment; try again."
            return _refused(request, Refusal(503, message, code="store_unavailable", retry_after_s=2.0))
        except Exception as error:  # noqa: BLE001 - the client must have an answer
            _log.error("request_failed", error, path=request.url.path[:64])
            return _refused(request, Refusal(500, "Internal error."))

    async def _upload(self, request: Request, sender: Sender) -> Response:
        content_type = request.headers.get("content-type", "")
        return _json(file_object(await self._handlers.upload_file(sender, content_type, request.stream())))

    async def _list_files(self, request: Request, sender: Sender) -> Response:
        query = request.query_params
        page = read_page(query, usual=10_000, most=10_000)
        newest_first = query.get("order", "desc") != "asc"
        found, more = self._handlers.list_files(sender, page, query.get("purpose"), newest_first=newest_first)
        return _json(list_object([file_object(each) for each in found], has_more=more))

    async def _file(self, request: Request, sender: Sender) -> Response:
        return _json(file_object(await self._handlers.find_file(sender, _id(request))))

    async def _delete_file(self, request: Request, sender: Sender) -> Response:
        await self._handlers.delete_file(sender, _id(request))
        return _json({"id": _id(request), "object": "file", "deleted": True})

    async def _content(self, request: Request, sender: Sender) -> Response:
        file = await self._handlers.find_file(sender, _id(request))
        headers = {"content-length": str(file.bytes)}
        return await _download(self._handlers.read_file(file), "application/octet-stream", headers)

    async def _create(self, request: Request, sender: Sender) -> Response:
        wanted = read_wanted_batch(await _body(request), self._longest_window_s)
        return _json(batch_object(await self._handlers.create_batch(sender, wanted)))

    async def _list(self, request: Request, sender: Sender) -> Response:
        page = read_page(request.query_params, usual=20, most=100)
        found, more = self._handlers.list_batches(sender, _OPENAI, page)
        return _json(list_object([batch_object(each) for each in found], has_more=more))

    async def _batch(self, request: Request, sender: Sender) -> Response:
        return _json(batch_object(await self._handlers.find_batch(sender, _id(request), _OPENAI)))

    async def _cancel(self, request: Request, sender: Sender) -> Response:
        return _json(batch_object(await self._handlers.cancel_batch(sender, _id(request), _OPENAI)))

    async def _create_messages(self, request: Request, sender: Sender) -> Response:
        return _json(message_batch_object(await self._handlers.create_message_batch(sender, request.stream())))

    async def _list_messages(self, request: Request, sender: Sender) -> Response:
        page = read_page(request.query_params, usual=20, most=1000, after="after_id")
        found, more = self._handlers.list_batches(sender, _ANTHROPIC, page)
        return _json(list_object([message_batch_object(each) for each in found], has_more=more, openai=False))

    async def _message_batch(self, request: Request, sender: Sender) -> Response:
        return _json(message_batch_object(await self._handlers.find_batch(sender, _id(request), _ANTHROPIC)))

    async def _delete_messages(self, request: Request, sender: Sender) -> Response:
        await self._handlers.delete_message_batch(sender, _id(request))
        return _json({"id": _id(request), "type": "message_batch_deleted"})

    async def _cancel_messages(self, request: Request, sender: Sender) -> Response:
        return _json(message_batch_object(await self._handlers.cancel_batch(sender, _id(request), _ANTHROPIC)))

    async def _results(self, request: Request, sender: Sender) -> Response:
        return await _download(await self._handlers.read_results(sender, _id(request)), "application/binary", {})


class _Cut(Exception):
    """The rest of a content can't be read."""


class _Download(StreamingResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(_Cut):  # without an end, the server closes the connection: the client sees that it isn't whole
            await super().__call__(scope, receive, send)


async def _download(content: AsyncIterator[bytes], media_type: str, headers: dict[str, str]) -> Response:
    """Begins once the first chunk is there: until then, an error of the store has a status of its own."""
    first = await anext(content, b"")

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        try:
            async for piece in content:
                yield piece
        except (NatsError, OSError, ContentLost) as error:
            _log.warning("download_cut", problem=jetstream_words(error))
            raise _Cut from None

    return _Download(pieces(), media_type=media_type, headers=headers)


async def _body(request: Request) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > _MOST_BODY:
            raise Refusal(413, f"The body has more than {_MOST_BODY} bytes.")
        pieces.append(piece)
    return b"".join(pieces)


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _json(document: dict[str, object]) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")


def _refused(request: Request, refusal: Refusal) -> Response:
    words = anthropic_error if request.url.path.startswith(BATCHES_PATH) else openai_error
    headers = {name.decode(): value.decode() for name, value in error_headers(refusal)}
    return Response(words(refusal), refusal.status, headers, media_type="application/json")


def _not_found(request: Request, error: Exception) -> Response:
    del error
    return _refused(request, Refusal(404, "Unknown path.", code="unknown_path"))


def _wrong_method(request: Request, error: Exception) -> Response:
    del error
    return _refused(request, Refusal(405, "The path doesn't take this method.", code="method_not_allowed"))
