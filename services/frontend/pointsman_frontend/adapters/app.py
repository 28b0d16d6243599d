"""The HTTP application: requests to APIs, the model list, health. No framework: one for two more paths costs more time
at the start than all of the frontend's own modules."""

from collections.abc import Coroutine
from importlib.metadata import version
from typing import Final

import orjson

from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.models import MODELS, model_entry, model_list
from pointsman_apis.passthrough import UNKNOWN
from pointsman_apis.paths import NOWHERE, Route, WrongMethod, check_method, check_path, unknown_path
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.model_catalogue import NotListed
from pointsman_edge.reviewing.response_stages import error_answer
from pointsman_frontend.adapters.http_request import HttpEdge, HttpRequest
from pointsman_frontend.adapters.http_turn import Turn, id_headers
from pointsman_frontend.domain.cors import answered, preflight
from pointsman_hosting.health import HealthApp

_HEALTH: Final = "/health"
"""Answers as `/ready`: load balancers know it by this name."""
_VERSION: Final = "/version"
_READ: Final = "GET, HEAD"
_JSON: Final = (b"content-type", b"application/json")


class EdgeApp:
    """Everything that clients may ask of the edge."""

    def __init__(self, http: HttpEdge, health: HealthApp, created: int) -> None:
        """`created`: since when each model exists, in unix seconds."""
        self._http = http
        self._edge = http.edge
        self._health = health
        self._created = created
        self._version = orjson.dumps({"version": version("pointsman-frontend")})

    def __call__(self, turn: Turn) -> Coroutine[object, object, None]:
        """Serve one request."""
        target = turn.target
        route = target.route
        if route is not None and not target.escaped and turn.method in route.api.methods:
            return HttpRequest(self._http, route, turn).run()
        return self._serve(turn, route)

    async def _serve(self, turn: Turn, route: Route | None) -> None:
        """Serve a request to any other path, or by another method."""
        cors = self._edge.policy().config.edge.cors
        if cors is not None:
            headers = preflight(cors, turn.method, turn.headers)
            if headers is not None:
                await turn.start(204, headers)
                await turn.end()
                return
            turn.extra = answered(cors, turn.headers)
        path = turn.target.path
        path = path if path == "/" else path.removesuffix("/")
        refusal = self._refusal_of(turn, path, route)
        if route is not None or refusal is not None:
            await HttpRequest(self._http, route or NOWHERE, turn, refusal).run()
            return
        request_id = self._edge.ids.choose_id(turn.headers, ())
        turn.ids = id_headers(request_id)
        if path in HealthApp.paths or path == _HEALTH:
            accepted = b",".join(value for name, value in turn.headers if name == b"accept")
            status, kind, body = self._health.answer_path("/ready" if path == _HEALTH else path, accepted)
            await turn.answer(status, [(b"content-type", kind.encode())], body)
        elif path == _VERSION:
            await turn.answer(200, [_JSON], self._version)
        else:
            await self._list(turn, request_id, path[len(MODELS) :])

    def _refusal_of(self, turn: Turn, path: str, route: Route | None) -> Refusal | None:
        """Why no route takes the request; None where one does."""
        method = turn.method
        try:
            check_path(turn.target.raw_path)
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

    async def _list(self, turn: Turn, request_id: str, rest: str) -> None:
        """All models that the client may use, or the one that the rest of the path names."""
        try:
            names = await self._edge.models.names(turn.headers, turn.wire.peer, request_id)
            document = model_entry(rest[1:], names, self._created) if rest else model_list(names, self._created)
        except Refusal as refusal:
            if isinstance(refusal, NotListed):
                turn.answer_headers = refusal.answer_headers
            await turn.answer(refusal.status, *error_answer(refusal, UNKNOWN))
        # The client must have an answer; the connection logs the error.
        except Exception:
            refusal = Refusal(500, "Internal error.", type=SERVER_ERROR, code="internal_error")
            await turn.answer(500, *error_answer(refusal, UNKNOWN))
            raise
        else:
            await turn.answer(200, [_JSON], orjson.dumps(document))
