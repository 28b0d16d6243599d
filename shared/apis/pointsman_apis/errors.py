"""Errors as each API words them, so that its clients raise them typed.

OpenAI: `{"error": {"message", "type", "param", "code"}}`. Anthropic: `{"type": "error", "error": {"type", "message"}}`.
Open Inference Protocol: `{"error": "message"}`.
"""

import math
import re
from typing import Final

from pointsman_apis.streams import event
from pointsman_core.lenient_json import write
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
    return write({"error": _openai(refusal, refusal.code)})


def anthropic_error(refusal: Refusal) -> bytes:
    """The body of Anthropic's errors."""
    return write(_anthropic(refusal, refusal.code))


def inference_error(refusal: Refusal) -> bytes:
    """The body of errors of the Open Inference Protocol: the message alone."""
    return write({"error": refusal.message})


def inference_error_event(refusal: Refusal) -> bytes:
    """The event of an error in a stream (`Api.error_event`), for that protocol's `generate_stream`."""
    return event(inference_error(refusal))


def error_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """`Retry-After` in whole seconds, and why the request was dropped, where the refusal says so."""
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after_s))).encode()))
    if refusal.dropped_reason is not None:
        reason = _UNSAFE.sub(" ", refusal.dropped_reason).encode()
        headers += [(name, reason) for name in _DROPPED_REASON]
    return headers


def openai_error_event(refusal: Refusal) -> bytes:
    """The event of an error in a stream of choices (`Api.error_event`)."""
    return event(write({"error": _openai(refusal, refusal.told_code)}))


def anthropic_error_event(refusal: Refusal) -> bytes:
    """The event of an error in a stream of Anthropic's API (`Api.error_event`)."""
    return event(write(_anthropic(refusal, refusal.told_code)), "error")


def response_error_event(refusal: Refusal) -> bytes:
    """Like `Api.error_event`, for `/v1/responses`: its own error event, with the member by which OpenAI's clients
    recognise an error. Strict clients want a number of its order, which isn't known here
    (diegosouzapw/OmniRoute #13964)."""
    error = _openai(refusal, refusal.told_code)
    members = {name: error[name] for name in ("code", "message", "param")}
    return event(write({"type": "error", "sequence_number": 0, **members, "error": error}), "error")


def _openai(refusal: Refusal, code: str | None) -> dict[str, object]:
    error: dict[str, object] = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": code}
    return {**refusal.more, **error} if refusal.more else error


def _anthropic(refusal: Refusal, code: str | None) -> dict[str, object]:
    status = refusal.status
    kind = _ANTHROPIC.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    error: dict[str, object] = {"type": kind, "message": refusal.message}
    details = {"error_code": code, "param": refusal.param, **(refusal.more or {})}
    details = {name: value for name, value in details.items() if value is not None}
    if details:
        error["details"] = details
    return {"type": "error", "error": error}
