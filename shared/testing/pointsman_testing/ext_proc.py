"""An ext_proc client: what Envoy sends to an external processor, message by message, and what comes back."""

# The messages have no type information; what leaves this module is typed by its classes.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from pointsman_epp_adapter.adapters.ext_proc_messages import ProcessingRequest, ProcessingResponse

LIMIT_S: Final = 60.0
"""No answer takes longer in a test."""
DESTINATION: Final = "x-gateway-destination-endpoint"
CHAT: Final = b'{"model":"llama-8b","messages":[]}'
"""A body that any of the APIs takes."""
NONE, STREAMED, BUFFERED, _PARTIAL, FULL_DUPLEX = range(5)
"""Body modes."""
_METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"


@dataclass(frozen=True)
class Reply:
    """One message of the processor's."""

    kind: str
    """`request_headers`, …, `immediate_response`."""
    set: dict[str, str] = field(default_factory=dict[str, str])
    removed: frozenset[str] = frozenset()
    body: bytes | None = None
    """The new body, or a streamed piece of one; None when the old one stays."""
    end: bool = False
    """Whether this is the last piece of a streamed body."""
    status: int = 0
    """Status of an immediate response."""
    mode: int | None = None
    """How the response's body is to be sent, if set."""
    clears_route: bool = False
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


class Exchange:
    """One stream."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        self.call = call

    async def request(
        self,
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        end: bool = False,
        modes: tuple[int, int] | None = (FULL_DUPLEX, FULL_DUPLEX),
        peer: str = "10.9.8.7:4711",
        subset: Iterable[str] | None = None,
    ) -> None:
        """Send the request's headers; `modes` of request and response, None as an older Envoy that doesn't say."""
        message = ProcessingRequest()
        named = {
            ":method": method, ":path": path, ":authority": "gateway", "content-type": "application/json",
            **(headers or {}),
        }  # fmt: skip
        _add(message.request_headers.headers, named)
        message.request_headers.end_of_stream = end
        if modes is not None:
            message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
        message.attributes[_ATTRIBUTES].fields["source.address"].string_value = peer
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.fields[f"{DESTINATION}-subset"].list_value.extend(list(subset))
        await self.call.write(message)

    async def body(self, data: bytes, *, end: bool = True, of: str = "request") -> None:
        """Send a piece of a body."""
        message = ProcessingRequest()
        part = getattr(message, f"{of}_body")
        part.body = data
        part.end_of_stream = end
        await self.call.write(message)

    async def trailers(self, of: str = "request") -> None:
        """Send trailers."""
        message = ProcessingRequest()
        getattr(message, f"{of}_trailers").SetInParent()
        await self.call.write(message)

    async def response(
        self,
        status: int = 200,
        *,
        headers: Mapping[str, str] | None = None,
        end: bool = False,
        served: str | None = None,
        upstream: str | None = None,
        details: str = "via_upstream",
        modes: tuple[int, int] | None = None,
    ) -> None:
        """Send the response's headers: `served` in the metadata of the Endpoint Picker Protocol, `upstream` as
        Envoy's attribute; `modes` where these are the exchange's first message."""
        message = ProcessingRequest()
        if modes is not None:
            message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
        named = {":status": str(status), "content-type": "application/json", **(headers or {})}
        _add(message.response_headers.headers, named)
        message.response_headers.end_of_stream = end
        attributes = message.attributes[_ATTRIBUTES].fields
        attributes["response.code_details"].string_value = details
        if upstream is not None:
            attributes["upstream.address"].string_value = upstream
        if served is not None:
            lb = message.metadata_context.filter_metadata["envoy.lb"]
            lb.fields[f"{DESTINATION}-served"].string_value = served
        await self.call.write(message)

    async def reply(self) -> Reply:
        """The next message. Raises EOFError when the processor has ended the stream, and `grpc.aio.AioRpcError`."""
        async with asyncio.timeout(LIMIT_S):
            message = await self.call.read()
        if message is grpc.aio.EOF:
            raise EOFError
        return _reply(message)

    async def replies(self, count: int) -> list[Reply]:
        """The next messages."""
        return [await self.reply() for _ in range(count)]

    async def ended(self) -> grpc.StatusCode:
        """Wait until the processor has ended the stream; returns the status."""
        async with asyncio.timeout(LIMIT_S):
            return await self.call.code()

    async def done(self) -> None:
        """Send no more, as Envoy does when an exchange has ended."""
        await self.call.done_writing()

    def reset(self) -> None:
        """Cancel the stream."""
        self.call.cancel()


class ExtProcClient:
    """A connection to an external processor; use as an async context manager."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = (
            grpc.aio.insecure_channel(target, options=options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=[*options, ("grpc.use_local_subchannel_pool", 1)])
        )
        self._method = self.channel.stream_stream(
            _METHOD,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    def open(self, metadata: Mapping[str, str] | None = None) -> Exchange:
        """Begin a stream, with headers of its own."""
        return Exchange(self._method(metadata=tuple((metadata or {}).items())))


async def sent_on(exchange: Exchange, body: bytes = CHAT, **request: object) -> list[Reply]:
    """A whole request in full duplex, as `Exchange.request` says, and the messages that send it on."""
    await exchange.request(**request)  # pyright: ignore[reportArgumentType] - passed on as given
    await exchange.body(body)
    replies = [await exchange.reply()]
    while replies[-1].kind != "immediate_response" and not replies[-1].end:
        replies.append(await exchange.reply())
    return replies


async def health(client: ExtProcClient, service: str, expected: str) -> bool:
    """Whether gRPC health has this status. Raises `grpc.aio.AioRpcError` when the server doesn't answer."""
    check = client.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    try:
        answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return False
        raise
    return answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(expected)


def _add(headers: Any, named: Mapping[str, str]) -> None:
    for name, value in named.items():
        headers.headers.add(key=name, raw_value=value.encode())


def _value(value: Any) -> Any:
    """A text, or the numbers of an object."""
    if value.HasField("struct_value"):
        return {name: each.number_value for name, each in value.struct_value.fields.items()}
    return value.string_value


def _reply(message: Any) -> Reply:
    kind = message.WhichOneof("response")
    metadata = {
        space: {name: _value(value) for name, value in each.struct_value.fields.items()}
        for space, each in message.dynamic_metadata.fields.items()
    }
    mode = message.mode_override.response_body_mode if message.HasField("mode_override") else None
    if kind == "immediate_response":
        answer = message.immediate_response
        return Reply(kind, *_mutation(answer.headers), body=answer.body, status=answer.status.code, metadata=metadata)
    if kind.endswith("trailers"):
        return Reply(kind)
    common = getattr(message, kind).response
    body, end = None, False
    form = common.body_mutation.WhichOneof("mutation")
    if form == "streamed_response":
        body, end = common.body_mutation.streamed_response.body, common.body_mutation.streamed_response.end_of_stream
    elif form == "body":
        body = common.body_mutation.body
    return Reply(
        kind,
        *_mutation(common.header_mutation),
        body=body,
        end=end,
        mode=mode,
        clears_route=common.clear_route_cache,
        metadata=metadata,
    )


def _mutation(mutation: Any) -> tuple[dict[str, str], frozenset[str]]:
    set_headers = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
    return set_headers, frozenset(mutation.remove_headers)
