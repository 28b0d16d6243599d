"""The lines of output files, as each API words them."""

from typing import Final, NamedTuple

import msgspec
import orjson

from pointsman_contracts.batch import KEY_REVOKED, LineResult

EXPIRED: Final = "batch_expired"
CANCELLED: Final = "batch_cancelled"
NO_ANSWER: Final = "no_answer"
INPUT_LOST: Final = "file_not_found"
RESULT_LOST: Final = "result_lost"
MESSAGES: Final = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "This request was not executed because the batch was cancelled.",
    INPUT_LOST: "This request was not executed because the content of the input file is lost.",
    RESULT_LOST: "The answer to this request is lost.",
    KEY_REVOKED: "This request was not executed because the API key of the batch isn't valid any more.",
}
"""Code of a line without an answer → words."""
_CODES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class OutputLine(NamedTuple):
    """One line of an output."""

    text: bytes
    """With its end."""
    kind: str
    """`completed`, `failed`, `expired` or `cancelled`."""


def kind_of(result: LineResult) -> str:
    """The count that a result belongs to."""
    if result.error == EXPIRED:
        return "expired"
    if result.error in (CANCELLED, KEY_REVOKED):
        return "cancelled"
    return "completed" if result.status is not None and 200 <= result.status < 300 else "failed"


def openai_line(batch: str, line: int, result: LineResult, body: bytes) -> OutputLine:
    """A line of OpenAI's output or error file: https://platform.openai.com/docs/api-reference/batch/request-output."""
    answered = result.status is not None
    document = {
        "id": f"batch_req_{batch.removeprefix('batch_')}_{line}",
        "custom_id": result.custom_id,
        "response": {
            "status_code": result.status,
            "request_id": result.request_id,
            "body": _as_json(body),
        }
        if answered
        else None,
        "error": None if answered else {"code": result.error, "message": result.message},
    }
    return OutputLine(msgspec.json.encode(document) + b"\n", kind_of(result))


def anthropic_line(result: LineResult, body: bytes) -> OutputLine:
    """A line of the results of Anthropic's message batches: https://docs.anthropic.com/en/api/retrieving-message-batch-results."""
    kind = kind_of(result)
    found: dict[str, object]
    if kind == "completed":
        found = {"type": "succeeded", "message": _as_json(body)}
    elif kind == "expired":
        found = {"type": "expired"}
    elif kind == "cancelled":
        found = {"type": "canceled"}
    else:
        found = {"type": "errored", "error": _anthropic_error(result, body)}
    return OutputLine(msgspec.json.encode({"custom_id": result.custom_id, "result": found}) + b"\n", kind)


def _anthropic_error(result: LineResult, body: bytes) -> object:
    try:
        document = orjson.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("type") == "error":  # pyright: ignore[reportUnknownMemberType]
        return msgspec.Raw(body)
    kind = _CODES.get(result.status or 0, "api_error" if (result.status or 500) >= 500 else "invalid_request_error")
    message = result.message or f"The request was answered with status {result.status}."
    return {"type": "error", "error": {"type": kind, "message": message}}


def _as_json(body: bytes) -> object:
    """The body as it came if it is a document on one line, else the same document or a text."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
    return document if b"\n" in body else msgspec.Raw(body)
