"""The gRPC method that Envoy calls: one stream for each HTTP request."""

from typing import Final
from urllib.parse import unquote

from pointsman_apis.passthrough import UNKNOWN
from pointsman_apis.paths import NOWHERE, Route, check_method, check_path, route_of
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.model_catalogue import NotListed
from pointsman_edge.taking_in.request_headers import is_json
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.body_routing import BodyRouting
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.ext_proc_request import ExtProcRequest
from pointsman_epp_adapter.adapters.grpc_call import Call, CallFailed, Status
from pointsman_epp_adapter.adapters.other_paths import OtherPaths
from pointsman_epp_adapter.adapters.stream import EnvoyGone, ProtocolViolation, Stream
from pointsman_epp_adapter.domain.envoy_events import BodyMode, RequestHead, ResponseHead
from pointsman_epp_adapter.domain.mutation import HeaderChanges
from pointsman_epp_adapter.domain.protocol_headers import restricted
from pointsman_runtime.telling.logs import Log

_log = Log("ext_proc")


class Processor:
    """Serves streams."""

    def __init__(self, envoy: EnvoyEdge, routing: BodyRouting | None) -> None:
        """`routing`: the body's model is named, and nothing else done."""
        self._envoy = envoy
        self._routing = routing
        self._others = OtherPaths(envoy)
        self._told: set[str] = set()
        self.violations = 0
        """Streams that broke the protocol."""

    async def process(self, call: Call) -> None:
        """`ExternalProcessor.Process`."""
        try:
            await self._serve(Stream(call))
        except EnvoyGone:
            return
        except ProtocolViolation as violation:
            self.violations += 1
            if str(violation) not in self._told:
                self._told.add(str(violation))
                _log.warning("protocol_violation", reason=str(violation))
            raise CallFailed(Status.INVALID_ARGUMENT, str(violation)) from None

    async def _serve(self, stream: Stream) -> None:
        head = await stream.next()
        if isinstance(head, ResponseHead):
            # A filter in front of this one refused the request, and Envoy shows its answer to all of them.
            await stream.pass_answer(head, head.mode or BodyMode.FULL_DUPLEX_STREAMED, HeaderChanges([], []))
            return
        if not isinstance(head, RequestHead):
            raise ProtocolViolation(f"{type(head).__name__} before any request's headers")
        settings = self._envoy.settings
        if settings.conformance_headers:
            head = restricted(head)
        named: Final = dict(head.headers)
        method = named.get(b":method", b"").decode("ascii", "replace")
        # As the frontend's server has it, and every engine's.
        raw_path = named.get(b":path", b"").partition(b"?")[0]
        path = unquote(raw_path.decode("utf-8", "replace"))
        route = route_of(path)
        api = UNKNOWN if route is None else route.api
        unread = False
        if self._routing is None:
            refusal = self._refusal_of(raw_path, method, path, route)
            taken = refusal is None and route is not None
            json = api.body == "json"
            unread = bool(taken and json and settings.other_content and not is_json(named.get(b"content-type")))
            if refusal is not None or (taken and not unread):
                await ExtProcRequest(self._envoy, stream, head, method, route or NOWHERE, refusal).run()
                return
        try:
            if self._routing is not None:
                await self._routing.name(stream, head)
            elif unread:
                await self._others.send_unread(stream, head)
            else:
                await self._others.serve(stream, head, path)
        except Refusal as refused:
            edits = refused.answer_headers if isinstance(refused, NotListed) else ()
            await stream.write(wire.immediate(refused, self._envoy.edge.ids.of(head.headers, ()), api, edits))

    def _refusal_of(self, raw_path: bytes, method: str, path: str, route: Route | None) -> Refusal | None:
        """Why no path takes a request; None where one does."""
        try:
            check_path(raw_path)
            if route is not None:
                check_method(method, route)
                return None
        except Refusal as refusal:
            return refusal
        return self._others.refusal_of(method, path)
