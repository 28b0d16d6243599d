"""Reads Envoy's messages in the form in which it writes them, straight from their bytes.

Protobuf's own objects for the dozen headers of a message cost more than all that is done with them. Whatever has
another form than the usual one is left to protobuf, which also says what is wrong with it: nothing is refused here.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pointsman_epp_adapter.domain.destination import DESTINATION
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, RequestHead, ResponseHead
from pointsman_epp_adapter.domain.mutation import Header

Part = tuple[int, int, int]
"""A field: its tag, and where its bytes begin and end, or its number twice."""

_LONG: Final = 0x80
"""From here on, a number takes another byte."""
_NUMBER: Final = 0
_BYTES: Final = 2
"""Kinds of fields: the lowest three bits of a tag."""
_REQUEST_HEADERS: Final = 0x12
_RESPONSE_HEADERS: Final = 0x1A
_REQUEST_BODY: Final = 0x22
_RESPONSE_BODY: Final = 0x2A
_HEADS: Final = (_REQUEST_HEADERS, _RESPONSE_HEADERS)
_BODIES: Final = (_REQUEST_BODY, _RESPONSE_BODY)
_METADATA: Final = 0x42
_ATTRIBUTES: Final = 0x4A
_MODES: Final = 0x5A
_FIRST: Final = 0x0A
"""A message's field 1, of bytes; field 1 as a number is 0x08, and so on."""
_SECOND: Final = 0x12
_THIRD: Final = 0x1A
_FIRST_NUMBER: Final = 0x08
_SECOND_NUMBER: Final = 0x10
_THIRD_NUMBER: Final = 0x18
_HINT: Final = b"subset_hint"
_SERVED: Final = DESTINATION.encode() + b"-served"
"""Names in metadata that is read: protobuf reads it."""


class _Unusual(Exception):
    """Protobuf reads it."""


def read(data: bytes) -> RequestHead | ResponseHead | Body | None:
    """A message's content; None where protobuf has to read it."""
    try:
        parts = _parts(data, 0, len(data))
        if not parts:
            return None
        tag = parts[0][0]
        if tag in _BODIES:
            return _body(data, parts)
        if tag in _HEADS:
            return _head(data, parts)
    except (_Unusual, IndexError, ValueError):
        pass
    return None


def _body(data: bytes, parts: list[Part]) -> Body:
    if len(parts) > 1 and (len(parts) != 2 or parts[1][0] != _METADATA):
        raise _Unusual
    tag, start, end = parts[0]
    content, last = b"", 0
    for field, begin, stop in _parts(data, start, end):
        if field == _FIRST:
            content = data[begin:stop]
        elif field == _SECOND_NUMBER:
            last = begin
        else:
            raise _Unusual
    return Body(tag == _REQUEST_BODY, content, last != 0)


def _head(data: bytes, parts: list[Part]) -> RequestHead | ResponseHead:
    attributes: Mapping[bytes, str] = {}
    modes = None
    if len({tag for tag, _, _ in parts}) != len(parts):
        raise _Unusual
    for tag, start, end in parts[1:]:
        if tag == _METADATA:
            if data.find(_HINT, start, end) >= 0 or data.find(_SERVED, start, end) >= 0:
                raise _Unusual
        elif tag == _ATTRIBUTES:
            attributes = _attributes(data[start:end])
        elif tag == _MODES:
            modes = _modes(data[start:end])
        else:
            raise _Unusual
    kind, start, end = parts[0]
    headers: list[Header] = []
    last = 0
    for tag, begin, stop in _parts(data, start, end):
        if tag == _FIRST and not headers:
            headers = _headers(data, begin, stop)
        elif tag == _THIRD_NUMBER:
            last = begin
        else:
            raise _Unusual
    if kind == _RESPONSE_HEADERS:
        served, details = attributes.get(b"upstream.address", ""), attributes.get(b"response.code_details", "")
        return ResponseHead(headers, last != 0, served, details, None if modes is None else modes[1])
    if modes is None:
        raise _Unusual
    # `127.0.0.1:80`, `[::1]:80` without the port.
    peer = attributes.get(b"source.address", "").rpartition(":")[0].strip("[]")
    return RequestHead(headers, last != 0, peer, None, *modes)


def _headers(data: bytes, at: int, end: int) -> list[Header]:
    found: list[Header] = []
    while at < end:
        size = data[at + 1]
        if data[at] != _FIRST:
            raise _Unusual
        at += 2
        if size >= _LONG:
            size, at = _rest(data, at, size)
        stop = at + size
        key = at + 2
        value = key + data[at + 1]
        # A longer name than one byte can tell ends at another place than its header, or has none of these tags there.
        if data[at] != _FIRST or data[at + 1] >= _LONG or stop > end:
            raise _Unusual
        name = data[key:value].lower()
        if value != stop:
            tag, size = data[value], data[value + 1]
            value += 2
            if size >= _LONG:
                size, value = _rest(data, value, size)
            if tag != _THIRD or value + size != stop:
                raise _Unusual
        if not name.isascii():
            raise _Unusual
        found.append((name, data[value:stop]))
        at = stop
    return found


@lru_cache(maxsize=1024)
def _attributes(data: bytes) -> Mapping[bytes, str]:
    """Those of the one filter that sends them. A connection's and an engine's are the same each time."""
    (key, *_), (value, begin, stop) = _parts(data, 0, len(data))
    if key != _FIRST or value != _SECOND:
        raise _Unusual
    found: dict[bytes, str] = {}
    for tag, entry, entry_end in _parts(data, begin, stop):
        (key, name, name_end), (value, text, text_end) = _parts(data, entry, entry_end)
        if tag != _FIRST or key != _FIRST or value != _SECOND:
            raise _Unusual
        ((kind, text, text_end),) = _parts(data, text, text_end)
        if kind != _THIRD:
            raise _Unusual
        found[data[name:name_end]] = data[text:text_end].decode("utf-8")
    return found


@lru_cache(maxsize=64)
def _modes(data: bytes) -> tuple[BodyMode, BodyMode]:
    of_request = of_response = 0
    for tag, number, _ in _parts(data, 0, len(data)):
        if tag == _FIRST_NUMBER:
            of_request = number
        elif tag == _SECOND_NUMBER:
            of_response = number
    return BodyMode(of_request), BodyMode(of_response)


def _parts(data: bytes, at: int, end: int) -> list[Part]:
    found: list[Part] = []
    while at < end:
        tag, size = data[at], data[at + 1]
        at += 2
        if size >= _LONG:
            size, at = _rest(data, at, size)
        if tag >= _LONG:
            raise _Unusual
        kind = tag & 7
        if kind == _BYTES:
            found.append((tag, at, at + size))
            at += size
        elif kind == _NUMBER:
            found.append((tag, size, size))
        else:
            raise _Unusual
    if at != end:
        raise _Unusual
    return found


def _rest(data: bytes, at: int, low: int) -> tuple[int, int]:
    """A number of more than one byte, and where it ends."""
    number, shift = low & 0x7F, 7
    while shift < 35:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _LONG:
            return number, at
        shift += 7
    raise _Unusual
