"""Members of a JSON object in its text: edits that touch no other byte, and members that occur twice.

A request body stays byte for byte what the client sent, except in the fields that a stage changed: numbers keep
their spelling, `true` stays `true`, unknown fields stay (S4-21). No decode of the whole body is needed for that.

Of a member that occurs twice, readers disagree about which one counts (RFC 8259, section 4): a stage may judge one of
them and an engine or a client use the other.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

import jiter
import orjson

from pointsman_core.one_member import FLAT, MEMBER, STRING, edit_one_member, quote
from pointsman_core.refusal import Refusal

_OPENING: Final = re.compile(rb"[ \t\r\n]*\{")
_NEXT: Final = re.compile(rb"[ \t\r\n]*([,}])")
_INNER: Final = re.compile(FLAT + b"|" + STRING + rb"|[{}\[\]]", re.DOTALL)
"""A string, an array or object without another one in it, or a bracket, within a member's value."""
_ESCAPE: Final = re.compile(rb"\\u([0-9a-fA-F]{4})|\\(.)")
_SIMPLE: Final = {b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")
"""Names that an error may repeat; others could be text of a prompt."""

_Member = tuple[str, int, int, int]
"""A key, where it starts, and where its value starts and ends."""


def edit_fields(body: bytes, edits: Mapping[str, bytes | None]) -> bytes:
    """Return `body` with each field of `edits` set to the given JSON text, or removed where it is None.

    A key that occurs more than once is changed in every place, because readers disagree on which one counts.
    An absent field is added at the end. `body` must be a valid JSON object; ValueError when its outer form isn't.
    """
    if not edits:
        return body
    if len(edits) == 1:
        [(key, value)] = edits.items()
        changed = edit_one_member(body, key, value) if value is not None else None
        if changed is not None:
            return changed
    members = _members(body)
    opening = members[0][1] if members else body.index(b"{") + 1
    pieces: list[bytes] = []
    present: set[str] = set()
    copied = 0
    """All of the body before is in `pieces`, or removed."""
    end, kept = opening, False
    for key, key_start, value_start, value_end in members:
        if key in edits:
            present.add(key)
            value = edits[key]
            if value is None:
                pieces.append(body[copied:end])
                copied = end = value_end
                continue
            pieces.append(body[copied if kept or not copied else key_start : value_start])
            pieces.append(value)
            copied = value_end
        elif not kept and copied:
            copied = key_start
        end, kept = value_end, True
    pieces.append(body[copied:end])
    for key, value in edits.items():
        if key not in present and value is not None:
            pieces.append((b"," if kept else b"") + quote(key) + b":" + value)
            kept = True
    pieces.append(body[end:])
    return b"".join(pieces)


def _members(body: bytes) -> list[_Member]:
    members: list[_Member] = []
    before: re.Match[bytes] | None = _OPENING.match(body)
    while before is not None:
        member = MEMBER.match(body, before.end())
        if member is None:
            empty = _NEXT.match(body, before.end())
            if members or empty is None or empty[1] != b"}":
                break
            return members
        key, end = member.group(1, 3)
        value_start, value_end = member.span(2)
        if value_start < 0:
            value_start = member.end()
            value_end = _closing(body, value_start)
            before = _NEXT.match(body, value_end)
            end = before and before[1]
        else:
            before = member
        name = _unquote(key) if b"\\" in key else key[1:-1].decode("utf-8", "surrogatepass")
        members.append((name, member.start(1), value_start, value_end))
        if end == b"}":
            return members
    raise ValueError("the body is not a JSON object")


def _closing(body: bytes, start: int) -> int:
    """The end of the array or object that starts here."""
    depth = 0
    for token in _INNER.finditer(body, start):
        begin, end = token.span()
        if end - begin == 1:
            depth += 1 if body[begin] in b"{[" else -1
        if not depth:
            return end
    raise ValueError("the body is not a JSON object")


def _unquote(text: bytes) -> str:
    return (
        _ESCAPE.sub(_unescape, text[1:-1])
        .decode("utf-8", "surrogatepass")
        .encode("utf-16", "surrogatepass")
        .decode("utf-16", "surrogatepass")
    )


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return chr(int(match[1], 16)).encode("utf-8", "surrogatepass")
    return _SIMPLE.get(match[2], match[2].decode("latin-1")).encode("utf-8")


class _Duplicate(Exception):
    """Ends the search; its argument is the name."""


def has_duplicate_member(raw: bytes | memoryview, document: object) -> bool:
    """Whether an object in a JSON text, which orjson decoded as `document`, has a member twice.

    orjson keeps the last one and reports no error. Most clients write JSON as orjson does: encoding it again then gives
    the same text. Other texts cost a second decoding. Raises orjson.JSONEncodeError for a document that nests deeper
    than orjson writes.
    """
    text = bytes(raw)  # a view is compared byte by byte, which takes twenty times as long as copying it
    if orjson.dumps(document) == text:
        return False
    try:
        jiter.from_json(text, cache_mode="none", catch_duplicate_keys=True)
    except ValueError:
        # It also stops at less depth than orjson.
        return duplicate_member(text) is not None
    return False


def duplicate_member(raw: bytes) -> str | None:
    """The name of the first member that an object of a JSON text has twice. Takes about ten times as long as decoding:
    call it where `has_duplicate_member` is true."""
    try:
        json.loads(raw, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except _Duplicate as found:
        return str(found)
    return None


def sent_twice(raw: bytes) -> Refusal:
    """The refusal of a body for which `has_duplicate_member` is true."""
    name = duplicate_member(raw) or ""
    shown = name if _NAME.fullmatch(name) else None
    which = "a member" if shown is None else f"the member {shown!r}"
    return Refusal(
        400,
        f"An object in the body has {which} more than once, and JSON readers disagree about which one counts; "
        "send it once.",
        param=shown,
        code="duplicate_member",
    )


def _once(members: list[tuple[str, object]]) -> None:
    if len(members) < 2:
        return
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            raise _Duplicate(name)
        seen.add(name)
