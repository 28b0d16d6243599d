"""Objects of a JSON text that have a member twice. RFC 8259, section 4: readers disagree about which one counts, so a
stage may judge one of them and an engine or a client use the other."""

import json
import re
from typing import Final

import jiter
import orjson

from pointsman_core.refusal import Refusal

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")
"""Names that an error may repeat; others could be text of a prompt."""


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
    """The name of the first member that an object of a JSON text has twice. Takes about ten times as long as decoding
    does: for texts of which `has_duplicate_member` is true."""
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
