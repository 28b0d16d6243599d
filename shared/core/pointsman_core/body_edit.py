"""Change top-level fields of a JSON object without touching any other byte.

A request body stays byte for byte what the client sent, except in the fields that a stage changed: numbers keep
their spelling, `true` stays `true`, unknown fields stay (S4-21). No decode of the whole body is needed for that.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\u([0-9a-fA-F]{4})|\\(.)")
_QUOTE, _BRACKET, _COLON, _COMMA = b'"[:,'
_SIMPLE: Final = {b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}


class _Member(NamedTuple):
    key: str
    key_start: int
    value_start: int
    value_end: int


def edit_fields(body: bytes, edits: Mapping[str, bytes | None]) -> bytes:
    """Return `body` with each field of `edits` set to the given JSON text, or removed where it is None.

    A key that occurs more than once is changed in every place, because readers disagree on which one counts.
    An absent field is added at the end. `body` must be a valid JSON object; ValueError when its outer form isn't.
    """
    if not edits:
        return body
    members = list(_members(body))
    opening = members[0].key_start if members else body.index(b"{") + 1
    closing = members[-1].value_end if members else opening
    pieces: list[bytes] = [body[:opening]]
    end_of_previous = opening
    for member in members:
        value = edits.get(member.key, b"")
        if value is not None:
            if len(pieces) > 1:
                pieces.append(body[end_of_previous : member.key_start])
            pieces.append(body[member.key_start : member.value_start])
            pieces.append(value or body[member.value_start : member.value_end])
        end_of_previous = member.value_end
    present = {member.key for member in members}
    for key, value in edits.items():
        if key not in present and value is not None:
            pieces.append((b"," if len(pieces) > 1 else b"") + _quote(key) + b":" + value)
    pieces.append(body[closing:])
    return b"".join(pieces)


def _members(body: bytes) -> Iterator[_Member]:
    depth = 0
    key = ""
    key_start = key_end = value_start = -1
    for match in _TOKEN.finditer(body):
        first = body[match.start()]
        if first == _QUOTE:
            if depth == 1 and value_start < 0:
                key_start, key_end = match.span()
        elif first in b"{[":
            depth += 1
            if first == _BRACKET and depth == 1:
                break
        elif first == _COLON:
            if depth == 1:
                key = _unquote(body[key_start:key_end])
                value_start = match.end()
        else:  # a comma, or a closing brace or bracket
            if depth == 1 and value_start >= 0:
                yield _Member(key, key_start, *_trim(body, value_start, match.start()))
                value_start = -1
            if first != _COMMA:
                depth -= 1
                if depth == 0:
                    return
    raise ValueError("the body is not a JSON object")


def _trim(body: bytes, start: int, end: int) -> tuple[int, int]:
    while start < end and body[start] in b" \t\r\n":
        start += 1
    while end > start and body[end - 1] in b" \t\r\n":
        end -= 1
    return start, end


def _unquote(text: bytes) -> str:
    inner = text[1:-1]
    if b"\\" not in inner:
        return inner.decode("utf-8", "surrogatepass")
    return (
        _ESCAPE.sub(_unescape, inner)
        .decode("utf-8", "surrogatepass")
        .encode("utf-16", "surrogatepass")
        .decode("utf-16", "surrogatepass")
    )


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return chr(int(match[1], 16)).encode("utf-8", "surrogatepass")
    return _SIMPLE.get(match[2], match[2].decode("latin-1")).encode("utf-8")


def _quote(key: str) -> bytes:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return b'"' + re.sub(r"[\x00-\x1f]", lambda m: f"\\u{ord(m[0]):04x}", escaped).encode("utf-8") + b'"'
