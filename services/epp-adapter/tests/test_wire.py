"""ext_proc messages are read and written as protobuf reads and writes them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false

from typing import Any

import pytest

from pointsman_epp_adapter.adapters import usual_messages, wire
from pointsman_epp_adapter.adapters.answer_fields import ALL_DUPLEX
from pointsman_epp_adapter.adapters.ext_proc_messages import (
    ProcessingRequest,
    ProcessingResponse,
)
from pointsman_epp_adapter.domain.envoy_events import BodyMode
from pointsman_epp_adapter.domain.mutation import HeaderChanges

SIZES = (0, 1, 99, 100, 101, 127, 128, 129, 300, 16_383, 16_384, 70_000)
_FILTER = "envoy.filters.http.ext_proc"


def _message(kind: str = "request_headers") -> Any:
    """A message with headers as Envoy sends it."""
    message = ProcessingRequest()
    head = getattr(message, kind)
    for name, value in ((":method", b"POST"), ("X-Mixed", b"\xff\x00"), ("x-empty", b"")):
        header = head.headers.headers.add()
        header.key, header.raw_value = name, value
    attributes = message.attributes[_FILTER].fields
    if kind == "request_headers":
        attributes["source.address"].string_value = "[::1]:4711"
        message.protocol_config.request_body_mode = 2
        message.protocol_config.response_body_mode = 1
    else:
        attributes["upstream.address"].string_value = "10.0.0.1:8000"
        attributes["response.code_details"].string_value = "via_upstream"
    message.metadata_context.SetInParent()
    return message


def _pool_metadata(message: Any) -> None:
    """Metadata that a pool's own picker reads."""
    lb = message.metadata_context.filter_metadata["envoy.lb"].fields
    lb["x-gateway-destination-endpoint-served"].string_value = "10.0.0.2:8000"
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields
    hint["x-gateway-destination-endpoint-subset"].string_value = "10.0.0.2:8000"


@pytest.mark.parametrize("kind", ["request_headers", "response_headers"])
def test_metadata_of_pools_is_heeded(kind: str) -> None:
    message = _message(kind)
    _pool_metadata(message)
    data = message.SerializeToString()
    assert usual_messages.read(data) is None
    event = wire.decode(data)
    assert "10.0.0.2:8000" in (getattr(event, "served", None) or getattr(event, "subset", ()))


def _with_value(message: Any) -> None:
    message.request_headers.headers.headers[0].value = "PUT"


def _with_old_value(message: Any) -> None:
    header = message.request_headers.headers.headers.add()
    header.key, header.value = "x-old", "é"


def _with_foreign_name(message: Any) -> None:
    message.request_headers.headers.headers[0].key = "é"


def _with_long_name(message: Any) -> None:
    message.request_headers.headers.headers[0].key = "n" * 200


def _without_modes(message: Any) -> None:
    message.ClearField("protocol_config")


def _with_two_filters(message: Any) -> None:
    message.attributes["another"].fields["source.address"].string_value = "10.0.0.9:1"


def _with_a_number(message: Any) -> None:
    message.attributes[_FILTER].fields["source.address"].number_value = 3


def _observing(message: Any) -> None:
    message.observability_mode = True


@pytest.mark.parametrize(
    "change",
    [
        _with_value,
        _with_old_value,
        _with_foreign_name,
        _with_long_name,
        _without_modes,
        _with_two_filters,
        _with_a_number,
        _observing,
    ],
)
def test_unusual_messages_are_left_to_protobuf(change: Any) -> None:
    message = _message()
    change(message)
    data = message.SerializeToString()
    assert usual_messages.read(data) is None
    assert wire.decode(data) == wire.decode_any(data)


def _expected_mutation(mutation: Any, changes: HeaderChanges) -> None:
    for name, value in changes.set:
        option = mutation.set_headers.add()
        option.append_action = 2
        option.header.key, option.header.raw_value = name.decode(), value
    mutation.remove_headers.extend(changes.remove)


def _changes(size: int) -> HeaderChanges:
    return HeaderChanges([(b"x-set", b"v" * size), (b"n" * max(1, size), b"")], ["x-gone", "r" * size])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("buffered", [True, False])
def test_a_decision_is_written_as_protobuf_writes_it(size: int, buffered: bool) -> None:
    (written,) = wire.decided(
        _changes(size),
        "10.0.0.1:8000",
        {"level": "full", "worker": "w" * size},
        buffered_body=buffered,
        body=b"b" * size if buffered else None,
    )
    expected = ProcessingResponse()
    common = (expected.request_body if buffered else expected.request_headers).response
    common.clear_route_cache = True
    _expected_mutation(common.header_mutation, _changes(size))
    if buffered:
        common.body_mutation.body = b"b" * size
    fields = expected.dynamic_metadata.fields
    fields["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value = "10.0.0.1:8000"
    fields["pointsman"].struct_value.fields["level"].string_value = "full"
    fields["pointsman"].struct_value.fields["worker"].string_value = "w" * size
    assert ProcessingResponse.FromString(written) == expected


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_of_the_edge_is_written_as_protobuf_writes_it(size: int) -> None:
    expected = ProcessingResponse()
    reply = expected.immediate_response
    reply.status.code = 429
    reply.body = b"b" * size
    reply.details = "d" * size
    _expected_mutation(reply.headers, HeaderChanges([*_changes(size).set, (b"x-request-id", b"r-1")], []))
    written = wire.answer(429, _changes(size).set, b"b" * size, "r-1", "d" * size)
    assert ProcessingResponse.FromString(written) == expected


def test_an_answer_without_changes_is_empty_but_for_its_kind() -> None:
    for kind, written in wire.CONTINUE.items():
        expected = ProcessingResponse()
        getattr(expected, kind).SetInParent()
        assert written == expected.SerializeToString()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("buffered", [True, False])
def test_further_changes_and_a_mode_behind_a_decision_are_read_as_one_message(size: int, buffered: bool) -> None:
    first, further = HeaderChanges([(b"x-a", b"1")], ["x-b"]), _changes(size)
    (written,) = wire.decided(first, "10.0.0.1:8000", {}, buffered_body=buffered)
    written += ALL_DUPLEX + wire.further(further, buffered_body=buffered, body=b"b" * size if buffered else None)
    together = HeaderChanges([*first.set, *further.set], [*first.remove, *further.remove])
    (expected,) = wire.decided(
        together, "10.0.0.1:8000", {}, buffered_body=buffered, body=b"b" * size if buffered else None
    )
    message = ProcessingResponse.FromString(expected)
    mode = message.mode_override
    mode.request_body_mode = mode.response_body_mode = int(BodyMode.FULL_DUPLEX_STREAMED)
    mode.response_header_mode = mode.request_trailer_mode = mode.response_trailer_mode = 1
    assert ProcessingResponse.FromString(written) == message


def test_a_request_without_destination_gets_no_metadata() -> None:
    (written,) = wire.decided(HeaderChanges([], []), "", {}, buffered_body=False)
    expected = ProcessingResponse()
    expected.request_headers.response.clear_route_cache = True
    expected.request_headers.response.header_mutation.SetInParent()
    assert ProcessingResponse.FromString(written) == expected


@pytest.mark.parametrize("mode", [None, *BodyMode])
def test_an_answers_head_is_written_as_protobuf_writes_it(mode: BodyMode | None) -> None:
    expected = ProcessingResponse()
    _expected_mutation(expected.response_headers.response.header_mutation, _changes(130))
    if mode is not None:
        expected.mode_override.response_header_mode = 1
        expected.mode_override.response_body_mode = int(mode)
        expected.mode_override.response_trailer_mode = 2 if mode is BodyMode.NONE else 1
    assert ProcessingResponse.FromString(wire.response_head(_changes(130), mode)) == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_piece_of_a_body_is_written_as_protobuf_writes_it(size: int) -> None:
    data, changes = b"b" * size, _changes(size)
    expected = ProcessingResponse()
    expected.response_body.response.body_mutation.body = data
    assert ProcessingResponse.FromString(wire.response_piece(data)) == expected
    _expected_mutation(expected.response_body.response.header_mutation, changes)
    assert ProcessingResponse.FromString(wire.response_piece(data, changes)) == expected


@pytest.mark.parametrize("of_request", [True, False])
def test_streamed_pieces_end_once(of_request: bool) -> None:
    pieces = [
        ProcessingResponse.FromString(each)
        for each in wire.streamed(b"b" * (wire.CHUNK + 1), of_request=of_request, end=True)
    ]
    bodies = [each.request_body if of_request else each.response_body for each in pieces]
    streamed = [each.response.body_mutation.streamed_response for each in bodies]
    assert [(len(each.body), each.end_of_stream) for each in streamed] == [(wire.CHUNK, False), (1, True)]


@pytest.mark.parametrize("size", [*SIZES, 0, 110, 120, 16_370, wire.CHUNK])
@pytest.mark.parametrize("of_request", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_a_streamed_piece_is_written_as_protobuf_writes_it(size: int, of_request: bool, end: bool) -> None:
    expected = ProcessingResponse()
    body = expected.request_body if of_request else expected.response_body
    body.response.body_mutation.streamed_response.body = b"b" * size
    body.response.body_mutation.streamed_response.end_of_stream = end
    assert ProcessingResponse.FromString(wire.piece(b"b" * size, of_request, end)) == expected
