"""ext_proc messages to and from values: the only module that knows protobuf's objects.

The messages of usual requests are read and written without them, by `usual_messages` and `answer_fields`.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto
"""

# The messages have no type information; what leaves this module is typed by its functions.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownParameterType=false, reportMissingParameterType=false

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from pointsman_apis.api import Api
from pointsman_apis.errors import error_headers
from pointsman_apis.passthrough import UNKNOWN
from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_epp_adapter.adapters import usual_messages
from pointsman_epp_adapter.adapters.answer_fields import field, mutation, number, override, repeated_text, texts
from pointsman_epp_adapter.adapters.ext_proc_messages import (
    DecodeError,
    ProcessingRequest,
    ProcessingResponse,
)
from pointsman_epp_adapter.domain.destination import DESTINATION, SCORES
from pointsman_epp_adapter.domain.envoy_events import (
    Body,
    BodyMode,
    Event,
    RequestHead,
    ResponseHead,
    Trailers,
    Unknown,
)
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD: Final = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHUNK: Final = 62_000
"""Largest piece of a body in one message, in bytes, as in the Gateway API inference extension: some Envoys take
at most 64 KiB."""
LB: Final = "envoy.lb"
SUBSET_HINT: Final = "envoy.lb.subset_hint"
OURS: Final = "pointsman"
"""Metadata namespaces."""
_SUBSET_KEY: Final = f"{DESTINATION}-subset"
_SERVED_KEY: Final = f"{DESTINATION}-served"
_CLEAR_ROUTE_CACHE: Final = b"\x28\x01"


def decode(data: bytes) -> Event:
    """One message of Envoy's. Raises DecodeError."""
    usual = usual_messages.read(data)
    return decode_any(data) if usual is None else usual


def decode_any(data: bytes) -> Event:
    """One message of any form. Raises DecodeError."""
    message = ProcessingRequest.FromString(data)
    kind = message.WhichOneof("request")
    if kind == "request_body" or kind == "response_body":
        body = getattr(message, kind)
        return Body(kind == "request_body", body.body, body.end_of_stream)
    if kind == "request_headers":
        return _request_head(message)
    if kind == "response_headers":
        head = message.response_headers
        lb = message.metadata_context.filter_metadata
        served = lb[LB].fields[_SERVED_KEY].string_value if LB in lb and _SERVED_KEY in lb[LB].fields else ""
        return ResponseHead(
            _headers(head),
            head.end_of_stream,
            served or _attribute(message, "upstream.address"),
            _attribute(message, "response.code_details"),
            BodyMode(message.protocol_config.response_body_mode) if message.HasField("protocol_config") else None,
        )
    if kind == "request_trailers" or kind == "response_trailers":
        return Trailers(kind == "request_trailers")
    return Unknown()


def answer_in(data: bytes) -> ResponseHead | None:
    """The head of an answer, if the message is one. Its reader reports a message that can't be read."""
    try:
        event = decode(data)
    except DecodeError:
        return None
    return event if isinstance(event, ResponseHead) else None


def decided(
    changes: HeaderChanges,
    destination: str,
    stamps: Mapping[str, str],
    *,
    buffered_body: bool,
    body: bytes | None = None,
    duplex: bool = False,
    trailers: bool = False,
) -> Iterator[bytes]:
    """The messages that send a request on: to `destination`, when it isn't empty, with `stamps` in our namespace.

    `buffered_body`: the body came as one message and this answers it; otherwise it answers the headers. `body` is the
    new one, None leaves it; in `duplex` it is always sent.
    """
    common = field(b"\x12", mutation(changes))
    if buffered_body and body is not None:
        common += field(b"\x1a", field(b"\x0a", body))
    metadata = repeated_text(LB, DESTINATION, destination) if destination else b""
    if stamps:
        metadata += texts(OURS, stamps.items())
    response = field(b"\x1a" if buffered_body else b"\x0a", field(b"\x0a", common + _CLEAR_ROUTE_CACHE))
    yield response + field(b"\x42", metadata) if metadata else response
    if duplex and not buffered_body and body is not None:
        yield from streamed(body, of_request=True, end=not trailers)


def scored(destination: str, scores: str) -> bytes:
    """The scores of endpoints, a JSON object, to be appended to the first message of `decided` for the same
    `destination`: protobuf takes the last value of a namespace."""
    message = ProcessingResponse()
    message.dynamic_metadata.update({LB: {DESTINATION: destination, SCORES: json.loads(scores)}})
    return message.SerializeToString()


def further(changes: HeaderChanges, *, buffered_body: bool, body: bytes | None = None) -> bytes:
    """Further changes of a request, to be appended to the first message of `decided`: protobuf merges both. `body`
    replaces a buffered one."""
    common = field(b"\x12", mutation(changes))
    if body is not None:
        common += field(b"\x1a", field(b"\x0a", body))
    return field(b"\x1a" if buffered_body else b"\x0a", field(b"\x0a", common))


def streamed(data: bytes, *, of_request: bool, end: bool) -> Iterator[bytes]:
    """A piece of a body in full-duplex mode, in messages that Envoy takes."""
    if len(data) <= CHUNK:
        yield piece(data, of_request, end)
        return
    for start in range(0, len(data), CHUNK):
        yield piece(data[start : start + CHUNK], of_request, end and start + CHUNK >= len(data))


def response_head(changes: HeaderChanges, mode: BodyMode | None) -> bytes:
    """Lets the headers of a response pass; `mode`, when it isn't None, is how Envoy is to send its body."""
    response = field(b"\x12", field(b"\x0a", field(b"\x12", mutation(changes))))
    return response if mode is None else response + override(mode)


def response_piece(data: bytes, changes: HeaderChanges | None = None) -> bytes:
    """Puts `data` in the place of a piece of a response's body, or of the whole one when it is buffered: then the
    headers wait with it, and may change too."""
    common = field(b"\x1a", field(b"\x0a", data))
    if changes is not None:
        common = field(b"\x12", mutation(changes)) + common
    return field(b"\x22", field(b"\x0a", common))


def immediate(refusal: Refusal, request_id: str, api: Api = UNKNOWN, edits: Sequence[HeaderEdit] = ()) -> bytes:
    """Ends the request with an error in the words of `api`; `edits` change its headers."""
    headers = edited_answer_headers([(b"content-type", b"application/json"), *error_headers(refusal)], edits)
    return answer(refusal.status, headers, api.error(refusal), request_id, refusal.told_code)


def answer(status: int, headers: Iterable[Header], body: bytes, request_id: str, details: str = "") -> bytes:
    """Ends the request with this response."""
    changes = HeaderChanges([*headers, (b"x-request-id", request_id.encode("ascii"))], [])
    reply = field(b"\x0a", b"\x08" + number(status)) + field(b"\x12", mutation(changes)) + field(b"\x1a", body)
    return field(b"\x3a", reply + field(b"\x2a", details.encode()))


CONTINUE: Final = {
    "request_headers": b"\x0a\x00",
    "response_headers": b"\x12\x00",
    "request_body": b"\x1a\x00",
    "response_body": b"\x22\x00",
    "request_trailers": b"\x2a\x00",
    "response_trailers": b"\x32\x00",
}
"""Answers without changes, by the kind of Envoy's message."""


def piece(data: bytes, of_request: bool, end: bool) -> bytes:
    """A piece of a body in full-duplex mode, of at most `CHUNK` bytes."""
    return b"".join((_before_piece(len(data), of_request, end), data, b"\x10\x01" if end else b""))


@lru_cache(maxsize=4096)
def _before_piece(size: int, of_request: bool, end: bool) -> bytes:
    """The message up to a piece of this size: the tags and lengths of the five fields that are around it."""
    heads: list[bytes] = []
    left = 2 if end else 0
    for tag in (b"\x0a", b"\x1a", b"\x1a", b"\x0a", b"\x1a" if of_request else b"\x22"):
        head = tag + number(size)
        heads.insert(0, head)
        # The mark of the end stands behind the piece, in the field around it.
        size += len(head) + left
        left = 0
    return b"".join(heads)


def _request_head(message: Any) -> RequestHead:
    head = message.request_headers
    if message.HasField("protocol_config"):
        config = message.protocol_config
        modes = BodyMode(config.request_body_mode), BodyMode(config.response_body_mode)
    else:
        # Without a protocol config, the Endpoint Picker Protocol's modes apply.
        modes = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED
    return RequestHead(
        _headers(head), head.end_of_stream, _host(_attribute(message, "source.address")), _subset(message), *modes
    )


def _headers(head: Any) -> list[Header]:
    return [
        (each.key.lower().encode("ascii", "replace"), each.raw_value or each.value.encode("utf-8"))
        for each in head.headers.headers
    ]


def _attribute(message: Any, name: str) -> str:
    for struct in message.attributes.values():
        if name in struct.fields:
            return struct.fields[name].string_value
    return ""


def _subset(message: Any) -> tuple[str, ...] | None:
    metadata = message.metadata_context.filter_metadata
    if SUBSET_HINT not in metadata or _SUBSET_KEY not in metadata[SUBSET_HINT].fields:
        return None
    value = metadata[SUBSET_HINT].fields[_SUBSET_KEY]
    if value.WhichOneof("kind") == "string_value":
        # lwepp takes one comma-separated string too.
        return tuple(part.strip() for part in value.string_value.split(",") if part.strip())
    return tuple(item.string_value for item in value.list_value.values if item.WhichOneof("kind") == "string_value")


def _host(address: str) -> str:
    """`127.0.0.1:80`, `[::1]:80` without the port."""
    return address.rpartition(":")[0].strip("[]")
