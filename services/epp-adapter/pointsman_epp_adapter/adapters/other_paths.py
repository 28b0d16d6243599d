"""Requests that no model decides about: the model list, other paths, and the model's name for routes."""

import time
from typing import Final

import orjson

from pointsman_core.refusal import Refusal
from pointsman_edge.domain.model_list import model_entry, model_list
from pointsman_edge.domain.requested_model import requested_model
from pointsman_edge.domain.routes import METHOD, ROUTES
from pointsman_edge.domain.static_choice import Closed, EngineState
from pointsman_edge.model_catalogue import ModelCatalogue, NotListed
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.desk import Desk
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE, BodyMode, RequestHead
from pointsman_epp_adapter.domain.any_engine import any_engine
from pointsman_epp_adapter.domain.destination import DESTINATION, destinations
from pointsman_epp_adapter.domain.mutation import HeaderChanges

MODELS: Final = "/v1/models"
MODEL_HEADER: Final = b"x-gateway-model-name"
_JSON: Final = [(b"content-type", b"application/json")]


class OtherPaths:
    """Answers in the endpoint picker's place, and routes by the body. After its answer the stream ends: what follows in
    such an exchange is Envoy's business."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._models = ModelCatalogue(desk.edge, desk.policy, desk.pools, desk.headers, desk.trusted, desk.decider)

    async def serve(self, stream: Stream, head: RequestHead, method: str, path: str) -> None:
        """A request for a path that isn't an API's, or with another method. Raises Refusal."""
        config = self._desk.policy().config
        if path in ROUTES:
            raise Refusal(405, f"{method} is not allowed on {path}; use {METHOD}.", code="method_not_allowed")
        if method == "GET" and (path == MODELS or path.startswith(f"{MODELS}/")):
            await self._list(stream, head, path)
            return
        if not self._desk.settings.other_paths:
            known = ", ".join((*ROUTES, MODELS))
            raise Refusal(404, f"There is no {path[:200]}; the paths are {known}.", code="unknown_path")
        load = self._desk.load
        chosen = destinations(any_engine(config, self._desk.pools, EngineState(load.open_on, self._avoided)))
        if not chosen:
            raise Closed("No engine can be reached this way.", "endpoint_not_routable")
        addresses = ",".join(each.address for each in chosen)
        changes = HeaderChanges([(DESTINATION.encode(), addresses.encode())], [])
        await self._send_on(stream, head, changes, addresses)

    async def name_model(self, stream: Stream, head: RequestHead) -> None:
        """Body-based routing: the body's model goes into a header, for routes to match. Raises Refusal."""
        if head.end:
            await self._send_on(stream, head, HeaderChanges([], [MODEL_HEADER.decode()]), "")
            return
        whole = await stream.body(head, self._desk.policy().limits.max_body)
        changes = HeaderChanges([(MODEL_HEADER, requested_model(whole.data).encode("utf-8", "replace"))], [])
        messages = wire.decided(
            changes,
            "",
            {},
            buffered_body=whole.buffered,
            body=None if whole.buffered else whole.data,
            duplex=not whole.buffered,
            trailers=whole.trailers,
        )
        for message in messages:
            await stream.write(message)
        if whole.trailers:
            await stream.write(CONTINUE["request_trailers"])

    async def _send_on(self, stream: Stream, head: RequestHead, changes: HeaderChanges, addresses: str) -> None:
        """Headers are enough; a body in full duplex goes on piece by piece."""
        for message in wire.decided(changes, addresses, {}, buffered_body=False):
            await stream.write(message)
        if head.end or head.request_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            return
        await stream.pass_body(of_request=True)

    async def _list(self, stream: Stream, head: RequestHead, path: str) -> None:
        """The models, or one of them. Raises Refusal."""
        request_id = self._id(head)
        created = self._desk.created
        headers = [header for header in head.headers if not header[0].startswith(b":")]
        try:
            names = await stream.listening(self._models.names(headers, head.peer, request_id))
        except NotListed as refusal:
            await stream.write(wire.immediate(refusal, request_id, edits=refusal.answer_headers))
            return
        name = path.removeprefix(MODELS).lstrip("/")
        document = model_entry(name, names, created) if name else model_list(names, created)
        await stream.write(wire.answer(200, _JSON, orjson.dumps(document), request_id))

    def _id(self, head: RequestHead) -> str:
        return self._desk.ids.of(head.headers, ())

    def _avoided(self, worker: str) -> bool:
        return self._desk.load.avoided(worker, time.monotonic())
