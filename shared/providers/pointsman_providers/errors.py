"""Translates a provider's errors into OpenAI's shape, with the right status for the client."""

from typing import Final

import orjson
from pydantic import JsonValue

from pointsman_core.refusal import Refusal

SERVER_ERROR: Final = "server_error"
CREDENTIAL: Final = "provider_credential"
"""Code of a refusal that only the gateway's operator can mend."""
LONGEST_MESSAGE: Final = 2000

_CLIENTS: Final = frozenset({400, 404, 413, 422})
"""Statuses of errors that the client can correct."""
_CREDENTIALS: Final = frozenset({401, 402, 403})
"""Statuses by which a provider rejects the gateway's credential; a client that got them would suspect its own key."""
_LATE: Final = frozenset({408, 504})


class BrokenAnswer(Exception):
    """The provider stopped within its answer, or sent what isn't one. The message has no content of the answer."""


def json_object(body: bytes) -> dict[str, JsonValue]:
    """The body of a provider's answer. Raises BrokenAnswer when it isn't a JSON object."""
    try:
        document: JsonValue = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BrokenAnswer("not JSON") from None
    if not isinstance(document, dict):
        raise BrokenAnswer("not a JSON object")
    return document


def is_clients(status: int) -> bool:
    """Whether an answer with this status is about the request itself, so that no other provider is asked."""
    return status in _CLIENTS


def attempt_outcome(status: int) -> str:
    """As `Attempt.outcome`, of one that was answered with this status, which isn't 2xx."""
    return "limited" if status == 429 else "timeout" if status in _LATE else "failed"


def explained(provider: str, status: int, body: bytes, retry_after_s: float | None = None) -> Refusal:
    """The client's error for a provider's error. `retry_after_s`: the pause that the provider asks for."""
    if status in _CLIENTS:
        message, code = _words(body)
        detail = f"The provider '{provider}' refused the request with status {status}."
        return Refusal(status, message or detail, code=code or "provider_refused", detail=detail)
    if status == 429:
        return Refusal(
            429,
            f"The provider '{provider}' accepts no more requests at the moment; try again later.",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=retry_after_s or 1.0,
        )
    if status in _CREDENTIALS:
        return Refusal(
            502,
            f"The provider '{provider}' rejects the gateway's credential; the gateway's operator must correct it.",
            type=SERVER_ERROR,
            code=CREDENTIAL,
        )
    if status in _LATE:
        return Refusal(
            504, f"The provider '{provider}' did not answer in time.", type=SERVER_ERROR, code="provider_timeout"
        )
    if status in (503, 529):
        return Refusal(
            503,
            f"The provider '{provider}' is overloaded.",
            type=SERVER_ERROR,
            code="provider_unavailable",
            retry_after_s=retry_after_s or 1.0,
        )
    return Refusal(
        502, f"The provider '{provider}' failed with status {status}.", type=SERVER_ERROR, code="provider_failed"
    )


def _words(body: bytes) -> tuple[str, str | None]:
    """Message and code of an error document: OpenAI's, Anthropic's, Google's (also as a list of one) or AWS's."""
    try:
        document: JsonValue = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", None
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return "", None
    error = document.get("error")
    inner = error if isinstance(error, dict) else document
    message = inner.get("message") or inner.get("Message")
    code = inner.get("code") or inner.get("status") or inner.get("type")
    return (
        message[:LONGEST_MESSAGE] if isinstance(message, str) else "",
        code if isinstance(code, str) else None,
    )
