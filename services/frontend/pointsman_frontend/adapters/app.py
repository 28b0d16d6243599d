"""The HTTP application: APIs, the model list, health. Plain ASGI: a framework for two more paths costs more time at the
start than all of the frontend's own modules."""

from importlib.metadata import version
from typing import Final

import orjson

from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.models import MODELS, model_entry, model_list
from pointsman_apis.paths import NOWHERE, Route, WrongMethod, check_method, check_path, route_of, unknown_path
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.model_catalogue import NotListed
from pointsman_frontend.adapters.client import JSON, Client
from pointsman_frontend.adapters.http_request import HttpEdge, HttpRequest
from pointsman_frontend.domain.cors import answered, preflight
from pointsman_runtime.service.health import HealthApp
from pointsman_runtime.service.http_server import Receive, Scope, Send

_HEALTH: Final = "/health"
"""Answers as `/ready`: load balancers know it by this name."""
_VERSION: Final = "/version"
_READ: Final = "GET, HEAD"


class EdgeApp:
    """Everything that clients may ask of the edge."""

    def __init__(self, http: HttpEdge, health: HealthApp, created: int) -> None:
        """`created`: since when each model exists, in unix seconds."""
        self._http = http
        self._edge = http.edge
        self._health = health
        self._created = created
        self._version = orjson.dumps({"version": version("pointsman-frontend")})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        cors = self._edge.policy().config.edge.cors
        if cors is not None:
            headers = preflight(cors, scope["method"], scope["headers"])
            if headers is not None:
                await send({"type": "http.response.start", "status": 204, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
            send = _with_headers(send, answered(cors, scope["headers"]))
        path: str = scope["path"]
        route = route_of(path)
        if route is not None and scope["method"] in route.api.methods and b"%" not in scope["raw_path"]:
            await HttpRequest(self._http, route, scope, receive, send).run()
            return
        path = path if path == "/" else path.removesuffix("/")
        refusal = self._refusal_of(scope, path, route)
        if route is not None or refusal is not None:
            await HttpRequest(self._http, route or NOWHERE, scope, receive, send, refusal).run()
            return
        request_id = self._edge.ids.of(scope["headers"], ())
        if path in HealthApp.paths or path == _HEALTH:
            scope["path"] = "/ready" if path == _HEALTH else path
            await self._health(scope, receive, _with_headers(send, [(b"x-request-id", request_id.encode("ascii"))]))
        elif path == _VERSION:
            await Client(send, request_id).answer(200, [JSON], self._version)
        else:
            await self._list(scope, Client(send, request_id), request_id, path[len(MODELS) :])

    def _refusal_of(self, scope: Scope, path: str, route: Route | None) -> Refusal | None:
        """Why no route takes the request; None where one does."""
        method: str = scope["method"]
        try:
            check_path(scope["raw_path"])
            if route is not None:
                check_method(method, route)
                return None
        except Refusal as refusal:
            return refusal
        if path in HealthApp.paths or path == _HEALTH:
            allowed = _READ
        elif path == _VERSION:
            allowed = "GET"
        elif path == MODELS or path.startswith(f"{MODELS}/"):
            path, allowed = MODELS, "GET"
        else:
            return unknown_path(path)
        return None if method in allowed.split(", ") else WrongMethod(method, path, allowed)

    async def _list(self, scope: Scope, client: Client, request_id: str, rest: str) -> None:
        """All models that the client may use, or the one that the rest of the path names."""
        peer: str = scope["client"][0] if scope.get("client") else ""
        try:
            names = await self._edge.models.names(scope["headers"], peer, request_id)
            document = model_entry(rest[1:], names, self._created) if rest else model_list(names, self._created)
        except Refusal as refusal:
            if isinstance(refusal, NotListed):
                client.answer_headers = refusal.answer_headers
            await client.refuse(refusal)
        except Exception:
            await client.refuse(Refusal(500, "Internal error.", type=SERVER_ERROR, code="internal_error"))
            raise
        else:
            await client.answer(200, [JSON], orjson.dumps(document))


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """`send` with further headers in the answer."""
    if not headers:
        return send

    async def send_with_headers(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_with_headers
