"""Requests of Anthropic's message batches, as lines of an input file."""

import re
from typing import Final

import msgspec

from pointsman_batch.domain.lines import METHOD, LineRefused, model_of_body

ENDPOINT: Final = "/v1/messages"
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class MessageRequest(msgspec.Struct):
    """An element of `requests`."""

    custom_id: str
    params: msgspec.Raw


_DECODER: Final = msgspec.json.Decoder(MessageRequest)


def line_of(element: bytes) -> tuple[str, bytes]:
    """The id of a request, and its line. Raises LineRefused."""
    try:
        request = _DECODER.decode(element)
    except (ValueError, RecursionError) as error:
        problem, _, path = str(error).partition(" - at `$.")
        where = path.rstrip("`") or None
        raise LineRefused("invalid_request", f"{where or 'the request'}: {problem}", where) from None
    if not _ID.fullmatch(request.custom_id):
        message = "custom_id: 1 to 64 letters, digits, `_` and `-` are required"
        raise LineRefused("invalid_custom_id", message, "custom_id")
    try:
        model_of_body(bytes(request.params))
    except LineRefused as refused:
        param = (refused.param or "params").replace("body", "params")
        raise LineRefused(refused.code, str(refused).replace("body", "params"), param) from None
    line = {"custom_id": request.custom_id, "method": METHOD, "url": ENDPOINT, "body": request.params}
    return request.custom_id, msgspec.json.encode(line).replace(b"\n", b" ") + b"\n"
