"""Replaces digits that are a JSON number by a placeholder, so that JSON stays valid."""

import re
from typing import Final, NamedTuple, cast

import orjson

NOTHING: Final = "null"
"""Replaces a number that may be a value or a part of a text: valid as both."""

_BEFORE: Final = re.compile(r"(?:^|[\[:,])\s*$")
_BEHIND: Final = re.compile(r"\s*(?:[,}\]]|$)")
_INNER_BEFORE: Final = re.compile(r"\\\"\s*:\s*$")
_INNER_BEHIND: Final = re.compile(r"\s*(?:[,}\]]|\\[nrt]|$)")
_NUMBER: Final = "0123456789+-.eE"
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
_REST_OF_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
_BETWEEN: Final = re.compile(r'(?:[\s{}\[\]:,0-9.+\-]|[0-9][eE]|true|false|null)*(?:[a-zE]{1,4}$)?(?="|$)')
_CUT: Final = re.compile(r"[a-zE]{0,4}")
"""The rest of a JSON word or number at the start of a piece."""
_NAMED: Final = re.compile(r'"\s*:\s*$')
_AROUND: Final = 64
"""Characters before and after that are read."""


class Replacement(NamedTuple):
    """The text that replaces a finding, and its place."""

    start: int
    end: int
    text: str


def in_place(text: str, start: int, end: int, placeholder: str, *, is_json: bool) -> Replacement:
    """The replacement of a finding in a text. `is_json`: the text is JSON, or a piece of it."""
    first, last = start, end
    while first and text[first - 1] in _NUMBER:
        first -= 1
    while last < len(text) and text[last] in _NUMBER:
        last += 1
    before, behind = text[max(0, first - _AROUND) : first], text[last : last + _AROUND]
    if _is_number(text[first:last]):
        if _INNER_BEFORE.search(before) and _INNER_BEHIND.match(behind):
            # JSON within a string of JSON.
            return Replacement(first, last, NOTHING)
        if _BEFORE.search(before) and _BEHIND.match(behind):
            value = _is_value(text, first)
            if value is None and is_json:
                return Replacement(first, last, NOTHING)
            if value or (value is False and not is_json and _NAMED.search(before)):
                return Replacement(first, last, f'"{placeholder}"')
    return Replacement(start, end, placeholder)


def _is_number(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), int | float)
    except orjson.JSONDecodeError:
        return False


def _is_value(text: str, place: int) -> bool | None:
    """Whether the finding is a JSON value; False inside a string, None where both are possible."""
    if text.lstrip()[:1] in ("{", "[") and _is_document(text):
        return _outside(text, place, in_string=False)
    outside, inside = (_outside(text, place, in_string=in_string) for in_string in (False, True))
    if outside is None or inside is None or outside == inside:
        return (inside or False) if outside is None else outside
    return None


def _is_document(text: str) -> bool:
    try:
        return isinstance(cast("object", orjson.loads(text)), dict | list)
    except orjson.JSONDecodeError:
        return False


def _outside(text: str, place: int, *, in_string: bool) -> bool | None:
    """Whether a place is outside the strings of a piece of JSON that may begin inside one; None when it isn't JSON."""
    begun = (_REST_OF_STRING if in_string else _CUT).match(text)
    at = begun.end() if begun is not None else 0
    found = False
    while at < len(text):
        between = _BETWEEN.match(text, at)
        if between is None:
            return None
        found |= at <= place < between.end()
        string = _STRING.match(text, between.end())
        at = len(text) if string is None else string.end()
    return found
