"""The one decode of a request body: bytes to a JSON object, or a refusal that says where it goes wrong."""

import re
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_apis.depth import too_deep
from pointsman_apis.fields import Document, kind_of
from pointsman_core.duplicate_members import has_duplicate_member, sent_twice
from pointsman_core.refusal import Refusal

_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_NUMBERS: Final = (b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf")


def decode(raw: bytes | memoryview) -> Document:
    """Parse the body of a request. Raises Refusal 400.

    Strict JSON (RFC 8259): UTF-8, no NaN or Infinity, no lone surrogates; how deep it nests is checked when it is
    written again. The NUL character is refused even when escaped, because tokenizers and stores disagree about it. So
    is a member that occurs twice: what is checked here must be what the engine reads.
    """
    try:
        document = cast("JsonValue", orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise _not_json(raw, error.msg, error.lineno, error.colno, error.pos) from None
    if not isinstance(document, dict):
        raise Refusal(400, f"The body must be a JSON object; got {kind_of(document)}.", code="invalid_json")
    if _contains_nul(raw):
        raise Refusal(400, "The body contains the NUL character (\\u0000); remove it.", code="invalid_json")
    try:
        twice = has_duplicate_member(raw, document)
    except orjson.JSONEncodeError:
        raise too_deep() from None
    if twice:
        raise sent_twice(bytes(raw))
    return document


def _contains_nul(raw: bytes | memoryview) -> bool:
    text = raw.obj if isinstance(raw, memoryview) and isinstance(raw.obj, bytes) else bytes(raw)
    # `in` runs at memory speed; the expression only runs for a body that has the six characters somewhere.
    return b"\\u0000" in text and _ESCAPED_NUL.search(raw) is not None


def _not_json(raw: bytes | memoryview, problem: str, line: int, column: int, position: int) -> Refusal:
    if not len(raw):
        return Refusal(400, "The body is empty; a JSON object is expected.", code="invalid_json")
    hint = ""
    if "unexpected end" in problem:
        hint = " The body seems to be cut off."
    elif "depth limit" in problem:
        return too_deep()
    elif "UTF-8" in problem:
        return Refusal(400, f"The body is not valid UTF-8 JSON: {problem}.", code="invalid_json")
    elif bytes(raw[position : position + 9]).lstrip().startswith(_NOT_NUMBERS):
        hint = " NaN and Infinity are not JSON; use null or a number."
    return Refusal(
        400, f"The body is not valid JSON: {problem} at line {line}, column {column}.{hint}", code="invalid_json"
    )
