"""JSON as clients of engines and providers read it: with NaN and infinities, with halves of surrogate pairs, and with
bytes that aren't UTF-8.

A service that cuts a text by UTF-16 units writes `\\ud83d` in one event and `\\ude00` in the next one. Engines write
`-Infinity` as a log probability. orjson reads none of these, and writes none.
"""

import codecs
import json
from typing import NamedTuple

import orjson


class Reading(NamedTuple):
    """A JSON text that was read."""

    value: object
    strict: bool
    """orjson writes the value as it came."""


def read(data: bytes) -> Reading:
    """Raises ValueError for what isn't JSON even so."""
    try:
        return Reading(orjson.loads(data), strict=True)
    except orjson.JSONDecodeError:
        pass
    try:
        return Reading(json.loads(data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write(value: object, *, strict: bool = True) -> bytes:
    """As compact JSON. `strict`: the value has no NaN and no infinity; without it they are written as they are."""
    if strict:
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError:
            pass  # half of a surrogate pair
    return json.dumps(value, separators=(",", ":")).encode("ascii")
