"""Errors as each API words them, so that its clients raise them typed.

OpenAI: `{"error": {"message", "type", "param", "code"}}`. Anthropic: `{"type": "error", "error": {"type", "message"}}`.
"""

import math
import re
from typing import Final

import orjson

from pointsman_core.refusal import Refusal
from pointsman_edge.taking_in.routes import MESSAGES, RESPONSES

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
"""The second is what clients of llm-d's endpoint picker read (endpoint-picker.md §1.11)."""
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]+")


def error_body(refusal: Refusal, api: str = "") -> bytes:
    """The JSON document for a client of `api`."""
    if api == MESSAGES:
        return _anthropic(refusal.status, refusal.message, refusal.code)
    return _document(refusal.message, refusal.type, refusal.param, refusal.code)


def error_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """`Retry-After` in whole seconds, and why the request was dropped, where the refusal says so."""
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after_s))).encode()))
    if refusal.dropped_reason is not None:
        reason = _UNSAFE.sub(" ", refusal.dropped_reason).encode()
        headers += [(name, reason) for name in _DROPPED_REASON]
    return headers


def error_event(message: str, code: str, api: str = "") -> bytes:
    """The last event of a stream that can't go on. Clients raise it as an error; no `[DONE]` follows."""
    if api == MESSAGES:
        return b"event: error\ndata: " + _anthropic(500, message, code) + b"\n\n"
    if api == RESPONSES:
        # The API's own error event, and the member by which OpenAI's clients tell that they have to raise.
        error = {"message": message, "type": SERVER_ERROR, "param": None, "code": code}
        event = {"type": "error", "code": code, "message": message, "param": None, "error": error}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"
    return b"data: " + _document(message, SERVER_ERROR, None, code) + b"\n\n"


def _document(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _anthropic(status: int, message: str, code: str | None) -> bytes:
    kind = _ANTHROPIC.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    error: dict[str, object] = {"type": kind, "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return orjson.dumps({"type": "error", "error": error})
