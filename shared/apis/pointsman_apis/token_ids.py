"""Token ids in the events of a stream: vLLM writes them where a request has `return_token_ids`."""

import re
from array import array
from collections.abc import Sequence
from typing import Final, cast

FIELD: Final = "return_token_ids"
MARK: Final = b'"token_ids":['
"""Begins the ids of one choice. Can't be part of a text: a quote inside a JSON string is written `\\"`."""
_NAME: Final = b'token_ids"'
_NONE: Final = b'"token_ids":null'
_ANY: Final = re.compile(rb'("(?:prompt_)?token_ids"\s*:\s*)\[[\d\s,]*\]')


def without_ids(data: bytes) -> bytes:
    """Whole events without their token ids: as an engine writes them that wasn't asked for any."""
    at = data.find(MARK)
    if at < 0 or data.count(_NAME) != 1:
        return _ANY.sub(rb"\1null", data) if _NAME in data else data
    return data[:at] + _NONE + data[data.find(b"]", at) + 1 :]


def ids_of(value: object) -> "array[int] | None":
    """A list of token ids; None for anything else."""
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    try:
        # An array takes true and false for numbers.
        return array("I", cast("list[int]", items)) if all(type(item) is int for item in items) else None
    except OverflowError:
        return None


def ids_in(pieces: Sequence[bytes]) -> "array[int] | None":
    """The ids of all events of a stream with one choice; None where an event lacks them, or they can't be read."""
    data = b"".join(pieces)
    parts = data.split(MARK)[1:]
    if len(parts) != data.count(b"data: {"):
        return None
    numbers = [part[: part.find(b"]")] for part in parts]
    try:
        return array("I", map(int, b",".join(filter(None, numbers)).split(b","))) if any(numbers) else array("I")
    except (ValueError, OverflowError):
        return None
