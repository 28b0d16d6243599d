"""Errors as each API words them, so that its clients raise them typed.

OpenAI: `{"error": {"message", "type", "param", "code"}}`. Anthropic: `{"type": "error", "error": {"type", "message"}}`.
"""

import math
import re
from typing import Final

import orjson

from pointsman_apis.streams import event
from pointsman_core.refusal import Refusal

SERVER_ERROR: Final = "server_error"
_ANTHROPIC: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Status → Anthropic's error type, https://docs.anthropic.com/en/api/errors; other 4xx are `invalid_request_error`,
other 5xx `api_error`."""
_DROPPED_REASON: Final = (b"x-pointsman-dropped-reason", b"x-llm-d-request-dropped-reason")
"""The second is read by clients of llm-d's endpoint picker."""
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]+")


def openai_error(refusal: Refusal) -> bytes:
    """The body of OpenAI's errors."""
    return _document(refusal.message, refusal.type, refusal.param, refusal.code)


def anthropic_error(refusal: Refusal) -> bytes:
    """The body of Anthropic's errors."""
    return _anthropic(refusal.status, refusal.message, refusal.code)


def error_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """`Retry-After` in whole seconds, and why the request was dropped, where the refusal says so."""
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after_s))).encode()))
    if refusal.dropped_reason is not None:
        reason = _UNSAFE.sub(" ", refusal.dropped_reason).encode()
        headers += [(name, reason) for name in _DROPPED_REASON]
    return headers


def openai_error_event(message: str, code: str) -> bytes:
    """As `Api.error_event`, for streams of choices."""
    return event(_document(message, SERVER_ERROR, None, code))


def anthropic_error_event(message: str, code: str) -> bytes:
    """As `Api.error_event`, for Anthropic's API."""
    return event(_anthropic(500, message, code), "error")


def response_error_event(message: str, code: str) -> bytes:
    """As `Api.error_event`, for `/v1/responses`: the API's own error event, with the member by which OpenAI's clients
    recognise an error."""
    error = {"message": message, "type": SERVER_ERROR, "param": None, "code": code}
    return event(
        orjson.dumps({"type": "error", "code": code, "message": message, "param": None, "error": error}), "error"
    )


def _document(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _anthropic(status: int, message: str, code: str | None) -> bytes:
    kind = _ANTHROPIC.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    error: dict[str, object] = {"type": kind, "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return orjson.dumps({"type": "error", "error": error})
