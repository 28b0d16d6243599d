"""Decodes a request body: bytes to a JSON object, or a refusal that names the error and its place."""

import re
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_apis.fields import Document, kind_of
from pointsman_core.json_members import has_duplicate_member, sent_twice
from pointsman_core.refusal import Refusal

DEEPEST: Final = 200
"""Levels of arrays and objects that always pass; a few more may. orjson reads 1,024 levels and writes 254."""
AROUND: Final = 8
"""Levels that a fingerprint or a provider's API may add around a part of the body."""
LOOK_ABOVE: Final = 131072
"""Bytes. Only larger bodies have their values counted: the decoder takes about 40 ns for a number and 100 ns for an
array or object, and a body of 4 MB can hold two million values."""
CONTAINER_SHARE: Final = 4
"""At most one value in 4 may be an array or object."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_MARKS: Final = b",[{"
_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_NUMBERS: Final = (b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf")


def too_deep() -> Refusal:
    """The refusal of a body that nests too deep."""
    return Refusal(
        400, f"The body nests arrays and objects too deep; {DEEPEST} levels may be sent.", code="body_too_complex"
    )


def written(part: object) -> bytes:
    """A part of a body as JSON, inside `AROUND` levels of arrays. Raises Refusal 400 for one that nests too deep."""
    try:
        return orjson.dumps([[[[[[[[part]]]]]]]])
    except orjson.JSONEncodeError as error:
        raise too_deep() from error


def check_density(raw: bytes | memoryview, max_values: int) -> None:
    """Refuse a body with more than `max_values` values or a quarter as many arrays and objects. Raises Refusal 400."""
    text = bytes(raw)
    most_containers = max_values // CONTAINER_SHARE
    # Commas and brackets within texts count here, so that this can only be too high.
    if len(text) - len(text.translate(None, _MARKS)) <= most_containers:
        return
    commas = containers = position = 0
    for string in _STRING.finditer(text):
        between = text[position : string.start()]
        commas += between.count(b",")
        containers += between.count(b"[") + between.count(b"{")
        position = string.end()
        if commas >= max_values or containers > most_containers:
            break
    else:
        rest = text[position:]
        commas += rest.count(b",")
        containers += rest.count(b"[") + rest.count(b"{")
    if commas >= max_values or containers > most_containers:
        raise Refusal(
            400,
            f"The body holds more than {max_values:,} values or {most_containers:,} arrays and objects; "
            "send less in one request, and long prompts as text.",
            code="body_too_complex",
        )


def decode(raw: bytes | memoryview, max_values: int | None = None) -> Document:
    """Parse the body of a request; `max_values` as `check_density`, without a bound by default. Raises Refusal 400.

    Strict JSON (RFC 8259): UTF-8, no NaN or Infinity, no lone surrogates; how deep it nests is checked when it is
    written again. The NUL character is refused even when escaped, because tokenizers and stores disagree about it. So
    is a member that occurs twice: what is checked here must be what the engine reads.
    """
    # Python compares and searches a view byte by byte, which takes twenty times as long as copying it.
    text = bytes(raw)
    if max_values is not None and len(text) > LOOK_ABOVE:
        check_density(text, max_values)
    try:
        document = cast("JsonValue", orjson.loads(text))
    except orjson.JSONDecodeError as error:
        raise _not_json(text, error.msg, error.lineno, error.colno, error.pos) from None
    if not isinstance(document, dict):
        raise Refusal(400, f"The body must be a JSON object; got {kind_of(document)}.", code="invalid_json")
    # `in` runs at memory speed; the expression only runs for a body that has the six characters somewhere.
    if b"\\u0000" in text and _ESCAPED_NUL.search(text) is not None:
        raise Refusal(400, "The body contains the NUL character (\\u0000); remove it.", code="invalid_json")
    try:
        twice = has_duplicate_member(text, document)
    except orjson.JSONEncodeError:
        raise too_deep() from None
    if twice:
        raise sent_twice(text)
    return document


def _not_json(text: bytes, problem: str, line: int, column: int, position: int) -> Refusal:
    if not text:
        return Refusal(400, "The body is empty; a JSON object is expected.", code="invalid_json")
    hint = ""
    if "unexpected end" in problem:
        hint = " The body seems to be cut off."
    elif "depth limit" in problem:
        return too_deep()
    elif "UTF-8" in problem:
        return Refusal(400, f"The body is not valid UTF-8 JSON: {problem}.", code="invalid_json")
    elif text[position : position + 9].lstrip().startswith(_NOT_NUMBERS):
        hint = " NaN and Infinity are not JSON; use null or a number."
    return Refusal(
        400, f"The body is not valid JSON: {problem} at line {line}, column {column}.{hint}", code="invalid_json"
    )
