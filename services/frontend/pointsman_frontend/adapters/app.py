"""The HTTP application: proxied routes, the model list, health."""

from typing import cast

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
from pointsman_frontend.adapters.client import Client
from pointsman_frontend.adapters.proxy import Proxy
from pointsman_runtime.health import HealthApp
from pointsman_runtime.http_server import Receive, Scope, Send


class EdgeApp(FastAPI):
    """FastAPI with the proxied routes and health as raw ASGI before its routing and middleware, which cost more
    than half as much as the server itself."""

    def __init__(self, proxy: Proxy, health: HealthApp, models: ModelCatalogue, created: int) -> None:
        super().__init__(title="Pointsman", docs_url=None, redoc_url=None, openapi_url=None)
        self._proxy = proxy
        self._health = health
        self._known = ", ".join((*ROUTES, "/v1/models"))
        self.add_exception_handler(HTTPException, self._http_error)
        self.add_exception_handler(Refusal, self._refusal)
        self.add_exception_handler(Exception, self._internal_error)

        async def named(request: Request) -> list[str]:
            scope = request.scope
            peer: str = scope["client"][0] if scope.get("client") else ""
            return await models.names(scope["headers"], peer, self._id_of(scope))

        @self.get("/v1/models")
        async def list_models(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction] - FastAPI calls it
            return _json(200, model_list(await named(request), created))

        @self.get("/v1/models/{name:path}")
        async def show_model(name: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction] - as above
            return _json(200, model_entry(name, await named(request), created))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path: str = scope["path"]
        try:
            check_path(scope["raw_path"])
        except Refusal as refusal:
            await Client(send, self._id_of(scope), ROUTES.get(path, "")).refuse(refusal)
            return
        api = ROUTES.get(path)
        if api is not None:
            if scope["method"] == METHOD:
                await self._proxy.serve(api, scope, receive, send)
            else:
                await self._wrong_method(scope, send, METHOD, api)
            return
        identified = _identified(send, self._id_of(scope))
        if path not in HealthApp.paths:
            await super().__call__(scope, receive, identified)
        elif scope["method"] in ("GET", "HEAD"):
            await self._health(scope, receive, identified)
        else:
            await self._wrong_method(scope, send, "GET, HEAD")

    def _id_of(self, scope: Scope) -> str:
        return self._proxy.ids.of(scope["headers"], ())

    async def _wrong_method(self, scope: Scope, send: Send, allowed: str, api: str = "") -> None:
        refusal = WrongMethod(scope["method"], scope["path"], allowed)
        await Client(send, self._id_of(scope), api).refuse(refusal, [(b"allow", allowed.encode("ascii"))])

    async def _http_error(self, request: Request, error: Exception) -> Response:
        raised = cast("HTTPException", error)
        path = request.url.path[:200]
        if raised.status_code == 404:
            refusal = Refusal(404, f"There is no {path}; the paths are {self._known}.", code="unknown_path")
        elif raised.status_code == 405:
            refusal = WrongMethod(request.method, path, (raised.headers or {}).get("Allow", "GET"))
        else:
            refusal = Refusal(raised.status_code, str(raised.detail), code="http_error")
        return _refused(refusal, dict(raised.headers or {}))

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
