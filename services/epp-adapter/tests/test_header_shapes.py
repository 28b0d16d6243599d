"""Heads that look like earlier ones are read as those were: with their own values, and never with another's names."""

import random

import pytest

from pointsman_epp_adapter.adapters import usual_messages, wire
from pointsman_epp_adapter.adapters.ext_proc_messages import ProcessingRequest
from pointsman_epp_adapter.domain.envoy_events import RequestHead

Headers = list[tuple[str, bytes]]


def _written(headers: Headers) -> bytes:
    message = ProcessingRequest()
    for name, value in headers:
        header = message.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value
    message.protocol_config.request_body_mode = 2
    return message.SerializeToString()


def _read(headers: Headers) -> list[tuple[bytes, bytes]]:
    data = _written(headers)
    head = usual_messages.read(data)
    assert isinstance(head, RequestHead)
    assert head == wire.decode_any(data)
    return head.headers


@pytest.mark.parametrize(
    "second",
    [
        [(":path", b"/one"), ("x-id", b"bbbb"), ("x-a", b"12345")],
        [(":path", b"/two"), ("x-di", b"aaaa"), ("x-a", b"12345")],
        [(":path", b"/two"), ("x-id", b"aaaaa"), ("x-a", b"1234")],
        [(":path", b"/two"), ("x-a", b"12345"), ("x-id", b"aaaa")],
        [(":path", b"/two"), ("X-ID", b"aaaa"), ("x-a", b"12345")],
        [(":path", b""), ("x-id", b""), ("x-a", b"")],
    ],
)
def test_a_head_of_the_same_length_is_read_by_itself(second: Headers) -> None:
    for headers in ([(":path", b"/one"), ("x-id", b"aaaa"), ("x-a", b"12345")], second, second):
        assert _read(headers) == [(name.lower().encode(), value) for name, value in headers]


def test_heads_of_more_shapes_than_are_remembered_are_read() -> None:
    chance = random.Random(2)
    for number in range(3_000):
        names = [f"x-{chance.randrange(40)}-{each}" for each in range(chance.randrange(1, 5))]
        headers = [(name, b"v" * chance.randrange(30)) for name in names]
        assert _read(headers) == [(name.encode(), value) for name, value in headers], number


def test_a_long_head_is_read_every_time() -> None:
    headers = [(f"x-{number}", b"v" * 300) for number in range(100)]
    assert _read(headers) == _read(headers) == [(name.encode(), value) for name, value in headers]
