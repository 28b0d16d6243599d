"""Requests that no model decides about: the model list, and other paths."""

import posixpath
from typing import Final
from urllib.parse import unquote

import orjson

from pointsman_apis.models import MODELS, model_entry, model_list
from pointsman_apis.paths import WrongMethod, route_of, unknown_path
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.static_choice import Eligible, EngineState, NoEndpoints
from pointsman_edge.taking_in.request_headers import internal
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.domain.any_engine import any_engine
from pointsman_epp_adapter.domain.destination import DESTINATION, destinations
from pointsman_epp_adapter.domain.envoy_events import RequestHead, ResponseHead
from pointsman_epp_adapter.domain.mutation import HeaderChanges, stripped
from pointsman_epp_adapter.domain.protocol_headers import served, told

_JSON: Final = [(b"content-type", b"application/json")]


class OtherPaths:
    """Answers in the endpoint picker's place, and sends what it doesn't read to any engine."""

    def __init__(self, envoy: EnvoyEdge) -> None:
        self._envoy = envoy
        self._edge = envoy.edge

    def refusal_of(self, method: str, path: str) -> Refusal | None:
        """The error for a request that isn't for an API; None if it is served."""
        path = path.removesuffix("/")
        if _is_models(path):
            return None if method == "GET" else WrongMethod(method, MODELS, "GET")
        meant = path_meant(path)
        # An engine may take another spelling of an API's path for it: that would pass keys, limits and guards by.
        if not self._envoy.settings.other_paths or route_of(meant) is not None or _is_models(meant):
            return unknown_path(path)
        return None

    async def serve_path(self, stream: Stream, head: RequestHead, path: str) -> None:
        """Serve a request that isn't for an API. Raises Refusal."""
        if _is_models(path.removesuffix("/")):
            await self._list(stream, head, path.removesuffix("/"))
        else:
            await self.send_unread(stream, head)

    async def send_unread(self, stream: Stream, head: RequestHead) -> None:
        """A request goes to an engine with a body that isn't read: one of the model that a trusted proxy names in the
        rewrite header, else any. Raises Refusal."""
        edge, load = self._edge, self._edge.load
        headers = edge.headers.read(head.sent_headers, trusted=edge.trusted.is_trusted(head.peer))
        stages, model = told(headers.stages, head.subset)
        eligible = Eligible.from_headers(stages)
        state = EngineState(load.open_on, edge.is_avoided)
        chosen = destinations(any_engine(edge.policy().config, edge.pools, state, eligible, model))
        if not chosen:
            raise NoEndpoints("No engine can be reached through this proxy.", "endpoint_not_routable")
        addresses = ",".join(each.address for each in chosen)
        ours = [
            (DESTINATION.encode(), addresses.encode()),
            (b"x-gateway-worker-id", chosen[0].worker.encode("ascii", "replace")),
            # After the last endpoint, Envoy would retry at engines that weren't chosen.
            (b"x-envoy-max-retries", b"%d" % (len(chosen) - 1)),
        ]
        names = {name.decode("ascii") for name, _ in ours}
        sent, kept = [name for name, _ in head.headers], [name for name, _ in headers.engine]
        removed = [name for name in stripped(sent, kept) if name not in names]
        await stream.write_all(wire.decided(HeaderChanges(ours, removed), addresses, {}, buffered_body=False))
        worker = chosen[0].worker
        load.begin_attempt(worker)
        try:
            answer = await stream.pass_request(head)
        finally:
            load.end_attempt(worker)
        await stream.pass_answer(answer, head.response_mode, self._answered(answer))

    def _answered(self, answer: ResponseHead) -> HeaderChanges:
        if answer.envoys_own:
            return HeaderChanges([], [])
        removed = sorted({name.decode("ascii", "replace") for name, _ in answer.headers if internal(name)})
        return HeaderChanges([served(answer)] if self._envoy.settings.conformance_headers else [], removed)

    async def _list(self, stream: Stream, head: RequestHead, path: str) -> None:
        """The models, or one of them. Raises Refusal."""
        request_id = self._edge.ids.choose_id(head.headers, ())
        created = self._envoy.created
        names = await stream.listen_while(self._edge.models.names(head.sent_headers, head.peer, request_id))
        name = path.removeprefix(MODELS).lstrip("/")
        document = model_entry(name, names, created) if name else model_list(names, created)
        await stream.write(wire.answer(200, _JSON, orjson.dumps(document), request_id))


def _is_models(path: str) -> bool:
    return path == MODELS or path.startswith(f"{MODELS}/")


_DECODED: Final = 3
"""Times: Envoy, a proxy behind it and the engine may each do it."""


def path_meant(path: str) -> str:
    """The shortest spelling: decoded, in lower case, with one slash between segments and none at the end, without
    `.` and `..`."""
    for _ in range(_DECODED):
        path = unquote(path)
    return posixpath.normpath("/" + path.replace("\\", "/").lstrip("/")).lower()
