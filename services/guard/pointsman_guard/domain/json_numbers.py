"""Where a placeholder goes in the place of digits that are a number of JSON, so that what was JSON stays JSON."""

import re
from typing import Final, NamedTuple, cast

import orjson

NOTHING: Final = "null"
"""Stands where it must read as a value and as a text."""

_BEFORE: Final = re.compile(r"(?:^|[\[:,])\s*$")
_BEHIND: Final = re.compile(r"\s*(?:[,}\]]|$)")
_INNER_BEFORE: Final = re.compile(r"\\\"\s*:\s*$")
_INNER_BEHIND: Final = re.compile(r"\s*(?:[,}\]]|\\[nrt]|$)")
_NUMBER: Final = "0123456789+-.eE"
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
_REST_OF_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)
_BETWEEN: Final = re.compile(r'(?:[\s{}\[\]:,0-9.+\-]|[0-9][eE]|true|false|null)*(?:[a-zE]{1,4}$)?(?="|$)')
_CUT: Final = re.compile(r"[a-zE]{0,4}")
"""The rest of a word of JSON, or of a number, with which a piece begins."""
_NAMED: Final = re.compile(r'"\s*:\s*$')
_AROUND: Final = 64
"""Characters before and behind that are looked at."""


class Replacement(NamedTuple):
    """What stands where instead of a finding."""

    start: int
    end: int
    text: str


def in_place(text: str, start: int, end: int, placeholder: str, *, is_json: bool) -> Replacement:
    """How a placeholder stands for what is found in a text. `is_json`: the text is JSON, or a piece of it."""
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
    """Whether what stands there is a value of JSON; False where it is a piece of a text, None where both may be."""
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
    """Whether a place is outside the strings of a piece of JSON that begins in one or not; None when it isn't JSON."""
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
