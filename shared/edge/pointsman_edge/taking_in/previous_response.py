"""The response that the body of `/v1/responses` continues."""

import re
from typing import Final, cast

import orjson

FIELD: Final = "previous_response_id"
_SPELLED: Final = re.compile(rb"\\u00(?:5f|6[0-9a-f]|7[0-9a])", re.IGNORECASE)
"""A small letter or an underscore that is written as an escape: a member's name may be spelled so."""


def previous_response(body: bytes) -> str | None:
    """The id of the earlier response; None: the request continues none, or its body is refused later."""
    if FIELD.encode() not in body and _SPELLED.search(body) is None:
        return None
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict):
        return None
    found = cast("dict[str, object]", document).get(FIELD)
    return found if isinstance(found, str) and found else None
