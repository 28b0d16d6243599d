"""Errors as OpenAI's API words them: `{"error": {"message", "type", "param", "code"}}`."""

import math
import re
from typing import Final

import orjson

from pointsman_core.refusal import Refusal

SERVER_ERROR: Final = "server_error"
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]+")


def error_body(refusal: Refusal) -> bytes:
    """The JSON document."""
    return _document(refusal.message, refusal.type, refusal.param, refusal.code)


def error_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """`Retry-After` in whole seconds, and why the request was dropped, where the refusal says so."""
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after_s))).encode()))
    if refusal.dropped_reason is not None:
        headers.append((b"x-pointsman-dropped-reason", _UNSAFE.sub(" ", refusal.dropped_reason).encode()))
    return headers


def error_event(message: str, code: str) -> bytes:
    """The last event of a stream that can't go on. OpenAI's clients raise it as an error; no `[DONE]` follows."""
    return b"data: " + _document(message, SERVER_ERROR, None, code) + b"\n\n"


def _document(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
