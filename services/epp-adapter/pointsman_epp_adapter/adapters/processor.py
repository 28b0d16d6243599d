"""The gRPC method that Envoy calls: one stream for each HTTP request."""

from typing import NamedTuple
from urllib.parse import unquote

from pointsman_apis.passthrough import UNKNOWN
from pointsman_apis.paths import NOWHERE, Route, check_method, check_path, route_of
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.model_catalogue import NotListed
from pointsman_edge.taking_in.bodies import is_json
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.body_routing import BodyRouting
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.ext_proc_request import ExtProcRequest
from pointsman_epp_adapter.adapters.grpc_call import Call, CallFailed, Status
from pointsman_epp_adapter.adapters.other_paths import OtherPaths
from pointsman_epp_adapter.adapters.stream import EnvoyGone, ProtocolViolation, Stream
from pointsman_epp_adapter.domain.envoy_events import BodyMode, Event, RequestHead, ResponseHead
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
        stream = Stream(call)
        try:
            head = await stream.next_message()
            request = self._request(stream, head) if isinstance(head, RequestHead) else None
            if request is not None:
                await request.run()
            else:
                await self._serve(stream, head)
        except EnvoyGone:
            return
        except ProtocolViolation as violation:
            self.violations += 1
            if str(violation) not in self._told:
                self._told.add(str(violation))
                _log.warning("protocol_violation", reason=str(violation))
            raise CallFailed(Status.INVALID_ARGUMENT, str(violation)) from None

    def _request(self, stream: Stream, head: RequestHead) -> ExtProcRequest | None:
        """The request that the stages decide, or that is refused; None where another part serves the stream."""
        if self._routing is not None:
            return None
        if self._envoy.settings.conformance_headers:
            head = restricted(head)
        asked = _asked(head)
        refusal = self._refusal_of(asked)
        if refusal is None and (asked.route is None or self._unread(asked)):
            return None
        return ExtProcRequest(
            envoy=self._envoy,
            stream=stream,
            head=head,
            method=asked.method,
            requested=asked.route or NOWHERE,
            refusal=refusal,
        )

    async def _serve(self, stream: Stream, head: Event) -> None:
        if isinstance(head, ResponseHead):
            # A filter in front of this one refused the request, and Envoy shows its answer to all of them.
            await stream.pass_answer(head, head.mode or BodyMode.FULL_DUPLEX_STREAMED, HeaderChanges([], []))
            return
        if not isinstance(head, RequestHead):
            raise ProtocolViolation(f"{type(head).__name__} came before the headers of a request")
        if self._envoy.settings.conformance_headers:
            head = restricted(head)
        asked = _asked(head)
        try:
            if self._routing is not None:
                await self._routing.name_model(stream, head)
            elif self._unread(asked):
                await self._others.send_unread(stream, head)
            else:
                await self._others.serve_path(stream, head, asked.path)
        except Refusal as refused:
            edits = refused.answer_headers if isinstance(refused, NotListed) else ()
            api = UNKNOWN if asked.route is None else asked.route.api
            await stream.write(wire.immediate(refused, self._envoy.edge.ids.choose_id(head.headers, ()), api, edits))

    def _unread(self, asked: "_Asked") -> bool:
        """Whether a request to an API's path goes on unread, as its body isn't the JSON that the path takes."""
        route = asked.route
        if route is None or not self._envoy.settings.other_content:
            return False
        return route.api.body == "json" and not is_json(asked.content_type)

    def _refusal_of(self, asked: "_Asked") -> Refusal | None:
        """Why no path takes a request; None where one does."""
        try:
            check_path(asked.raw_path)
            if asked.route is not None:
                check_method(asked.method, asked.route)
                return None
        except Refusal as refusal:
            return refusal
        return self._others.refusal_of(asked.method, asked.path)


class _Asked(NamedTuple):
    """The wishes in a request's headers."""

    method: str
    raw_path: bytes
    path: str
    """Without escapes."""
    route: Route | None
    content_type: bytes | None


def _asked(head: RequestHead) -> _Asked:
    named = dict(head.headers)
    # As the frontend's server has it, and every engine's.
    raw_path = named.get(b":path", b"").partition(b"?")[0]
    path = unquote(raw_path.decode("utf-8", "replace"))
    method = named.get(b":method", b"").decode("ascii", "replace")
    return _Asked(method, raw_path, path, route_of(path), named.get(b"content-type"))
