"""The HTTP application: proxied routes, the model list, health."""

from typing import Final, cast

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from pointsman_core.refusal import Refusal
from pointsman_edge.domain.error_body import SERVER_ERROR, error_body, error_headers
from pointsman_edge.domain.model_list import model_entry, model_list
from pointsman_edge.domain.path_spelling import check_path
from pointsman_edge.domain.routes import METHOD, ROUTES
from pointsman_edge.domain.wrong_method import WrongMethod
from pointsman_edge.model_catalogue import ModelCatalogue, NotListed
from pointsman_frontend.adapters.proxy import Proxy
from pointsman_runtime.health import HealthApp
from pointsman_runtime.http_server import Receive, Scope, Send

_MODELS: Final = "/v1/models"


class EdgeApp(FastAPI):
    """FastAPI with the proxied routes and health as raw ASGI before its routing and middleware, which cost more
    than half as much as the server itself."""

    def __init__(self, proxy: Proxy, health: HealthApp, models: ModelCatalogue, created: int) -> None:
        super().__init__(title="Pointsman", docs_url=None, redoc_url=None, openapi_url=None)
        self._proxy = proxy
        self._health = health
        self._known = ", ".join((*ROUTES, _MODELS))
        self.add_exception_handler(HTTPException, self._http_error)
        self.add_exception_handler(Refusal, self._refusal)
        self.add_exception_handler(Exception, self._internal_error)

        async def named(request: Request) -> list[str]:
            scope = request.scope
            peer: str = scope["client"][0] if scope.get("client") else ""
            return await models.names(scope["headers"], peer, proxy.ids.of(scope["headers"], ()))

        @self.get(_MODELS)
        async def list_models(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction] - FastAPI calls it
            return _json(200, model_list(await named(request), created))

        @self.get(_MODELS + "/{name:path}")
        async def show_model(name: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction] - as above
            return _json(200, model_entry(name, await named(request), created))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path: str = scope["path"]
        api = ROUTES.get(path)
        if api is not None and scope["method"] == METHOD and b"%" not in scope["raw_path"]:
            await self._proxy.serve(api, scope, receive, send)
            return
        refusal = self._refusal_of(scope, path, api)
        if api is not None or refusal is not None:
            await self._proxy.serve(api or "", scope, receive, send, refusal)
            return
        identified = _identified(send, self._proxy.ids.of(scope["headers"], ()))
        if path in HealthApp.paths:
            await self._health(scope, receive, identified)
        else:
            await super().__call__(scope, receive, identified)

    def _refusal_of(self, scope: Scope, path: str, api: str | None) -> Refusal | None:
        """Why no route takes the request; None where one does."""
        try:
            check_path(scope["raw_path"])
        except Refusal as refusal:
            return refusal
        method: str = scope["method"]
        if api is not None:
            allowed = METHOD
        elif path in HealthApp.paths:
            allowed = "GET, HEAD"
        elif path == _MODELS or path.startswith(f"{_MODELS}/"):
            allowed = "GET"
        else:
            return Refusal(404, f"There is no {path[:200]}; the paths are {self._known}.", code="unknown_path")
        return None if method in allowed.split(", ") else WrongMethod(method, path, allowed)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        del request
        raised = cast("HTTPException", error)
        return _refused(Refusal(raised.status_code, str(raised.detail), code="http_error"), dict(raised.headers or {}))

    async def _refusal(self, request: Request, error: Exception) -> Response:
        del request
        edits = error.answer_headers if isinstance(error, NotListed) else ()
        return _refused(cast("Refusal", error), {edit.name: edit.value for edit in edits if edit.value is not None})

    async def _internal_error(self, request: Request, error: Exception) -> Response:
        del request, error
        return _refused(Refusal(500, "Internal error.", type=SERVER_ERROR, code="internal_error"), {})


def _identified(send: Send, request_id: str) -> Send:
    header = (b"x-request-id", request_id.encode("ascii"))

    async def send_with_id(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return send_with_id


def _json(status: int, document: object) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _refused(refusal: Refusal, headers: dict[str, str]) -> Response:
    headers |= {name.decode("ascii"): value.decode("ascii") for name, value in error_headers(refusal)}
    return Response(error_body(refusal), refusal.status, headers, media_type="application/json")
