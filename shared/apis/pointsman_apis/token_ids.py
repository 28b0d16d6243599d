"""Token ids in the events of a stream: vLLM writes them where a request has `return_token_ids`."""

import re
from array import array
from collections.abc import Sequence
from typing import Final, cast

FIELD: Final = "return_token_ids"
LIST: Final = b'"token_ids":['
"""Begins the ids of one choice. Can't be part of a text: a quote inside a JSON string is written `\\"`."""
NO_LIST: Final = b'"token_ids":null'
_PROMPT: Final = b'"prompt_token_ids":['
_NO_PROMPT: Final = b'"prompt_token_ids":null'
_ASKED: Final = b',"%b":true}' % FIELD.encode()
_NAME: Final = b'token_ids"'
_OTHER_LIST: Final = b'token_ids":['
_ANY: Final = re.compile(rb'(token_ids"\s*:\s*)\[[\d\s,]*\]')


def with_token_ids(body: bytes) -> bytes:
    """A request that asks the engine for token ids: its body has members, and doesn't name this one."""
    if not body.endswith(b"}"):
        body = body.rstrip(b" \t\r\n")
    return body[:-1] + _ASKED


def without_ids(data: bytes) -> bytes:
    """Whole events without their token ids: as an engine writes them that wasn't asked for any."""
    return without_others(*cut_ids(data))


def without_others(cut: bytes, lists: Sequence[bytes]) -> bytes:
    """Like `without_ids`, from the results of `cut_ids`."""
    # Other lists are a prompt's, or are written with spaces.
    usual = cut.find(_OTHER_LIST) < 0 if lists else cut.find(_NAME) < 0
    return cut if usual else _ANY.sub(rb"\1null", cut)


def cut_ids(data: bytes) -> tuple[bytes, Sequence[bytes]]:
    """Whole events without their token ids, and the ids of each choice, as `read_ids` takes them."""
    before, *parts = data.split(LIST)
    if not parts:
        return data, ()
    ids, _, rest = zip(*[part.partition(b"]") for part in parts], strict=True)
    return (NO_LIST.join((before, *rest)), ids) if is_flat(b"".join(ids)) else (data, ())


def cut_prompt(data: bytes) -> tuple[bytes, bytes | None]:
    """Whole events without the token ids of a prompt, and these ids, as `read_ids` takes them; None where there are
    none."""
    before, found, after = data.partition(_PROMPT)
    ids, _, rest = after.partition(b"]")
    return (before + _NO_PROMPT + rest, ids) if found and is_flat(ids) else (data, None)


def is_flat(items: bytes) -> bool:
    """Whether the items of a JSON list, up to its first bracket, are all of them."""
    return items.isdigit() or (items.find(b"[") < 0 and items.find(b'"') < 0)


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


def read_ids(lists: Sequence[bytes]) -> "array[int] | None":
    """The ids of lists of numbers, each in JSON without its brackets; None where they can't be read."""
    numbers = b",".join(filter(None, lists))
    try:
        return array("I", map(int, numbers.split(b","))) if numbers else array("I")
    except (ValueError, OverflowError):
        return None
