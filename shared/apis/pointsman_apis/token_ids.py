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
NO_TEXT: Final = b'"delta":{},"logprobs":null,"finish_reason":null,"'
"""In an event that vLLM writes for its ids alone: the token has no text yet
(`entrypoints/openai/chat_completion/serving.py` of 0.32.0, with a parser for tools or thoughts)."""
_WITHOUT_TEXT: Final = re.compile(
    rb'data: \{[^\n]*"choices":\[\{[^\n{}]*"delta":\{\},"logprobs":null,"finish_reason":null,"[^\n{}]*\}\][^\n]*\}\n\n'
)
NAME: Final = b'token_ids"'
_NONE: Final = b'token_ids":null'
_ANY: Final = re.compile(rb'(token_ids"\s*:\s*)\[[^][]*(?:\[[^][]*\][^][]*)*\]')
"""A list of ids in any form, also of lists."""


def with_token_ids(body: bytes) -> bytes:
    """A request that asks the engine for token ids: its body has members, and doesn't name this one."""
    if not body.endswith(b"}"):
        body = body.rstrip(b" \t\r\n")
    return body[:-1] + _ASKED


def without_ids(data: bytes) -> bytes:
    """Whole events, or a document, without their token ids: as an engine writes them that wasn't asked for any."""
    data = _without_lists(data)
    return _WITHOUT_TEXT.sub(b"", data) if NO_TEXT in data else data


def _without_lists(data: bytes) -> bytes:
    cut, _ = cut_ids(data)
    if _has_ids(cut):
        # Usually those of the prompt.
        cut, _ = cut_prompt(cut)
        if _has_ids(cut):
            return _ANY.sub(rb"\1null", cut)
    return cut


def _has_ids(data: bytes) -> bool:
    names = data.count(NAME)
    return names > 0 and names != data.count(_NONE)


def cut_ids(data: bytes) -> tuple[bytes, Sequence[bytes]]:
    """Whole events without their token ids, and the ids of each choice, as `read_ids` takes them."""
    before, *parts = data.split(LIST)
    if not parts:
        return data, ()
    ids, ends, rest = zip(*[part.partition(b"]") for part in parts], strict=True)
    whole = all(ends) and is_flat(b"".join(ids))
    return (NO_LIST.join((before, *rest)), ids) if whole else (data, ())


def cut_prompt(data: bytes) -> tuple[bytes, bytes | None]:
    """Whole events without the token ids of a prompt, and these ids, as `read_ids` takes them; None where there are
    none."""
    before, _, after = data.partition(_PROMPT)
    ids, end, rest = after.partition(b"]")
    return (before + _NO_PROMPT + rest, ids) if end and is_flat(ids) else (data, None)


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
