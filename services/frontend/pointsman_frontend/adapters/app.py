"""The HTTP application: proxied routes, the model list, health. Plain ASGI: a framework for two more paths costs more
time at the start than all of the frontend's own modules."""

import orjson

from pointsman_apis import PATHS
from pointsman_apis.api import Api
from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.models import MODELS, model_entry, model_list
from pointsman_apis.passthrough import UNKNOWN
from pointsman_apis.paths import METHOD, WrongMethod, check_path, unknown_path
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.model_catalogue import NotListed
from pointsman_frontend.adapters.client import JSON, Client
from pointsman_frontend.adapters.http_request import HttpEdge, HttpRequest
from pointsman_runtime.service.health import HealthApp
from pointsman_runtime.service.http_server import Receive, Scope, Send


class EdgeApp:
    """Everything that clients may ask of the edge."""

    def __init__(self, http: HttpEdge, health: HealthApp, created: int) -> None:
        """`created`: since when each model exists, in unix seconds."""
        self._http = http
        self._edge = http.edge
        self._health = health
        self._created = created

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path: str = scope["path"]
        api = PATHS.get(path)
        if api is not None and scope["method"] == METHOD and b"%" not in scope["raw_path"]:
            await HttpRequest(self._http, api, scope, receive, send).run()
            return
        refusal = self._refusal_of(scope, path, api)
        if api is not None or refusal is not None:
            await HttpRequest(self._http, api or UNKNOWN, scope, receive, send, refusal).run()
            return
        request_id = self._edge.ids.of(scope["headers"], ())
        if path in HealthApp.paths:
            await self._health(scope, receive, _identified(send, request_id))
        else:
            await self._list(scope, Client(send, request_id), request_id, path[len(MODELS) :])

    def _refusal_of(self, scope: Scope, path: str, api: Api | None) -> Refusal | None:
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


def _identified(send: Send, request_id: str) -> Send:
    header = (b"x-request-id", request_id.encode("ascii"))

    async def send_with_id(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return send_with_id
