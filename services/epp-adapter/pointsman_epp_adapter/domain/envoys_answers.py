"""Errors for requests that Envoy itself ends, in the words of the client's API instead of Envoy's text."""

from typing import Final

from pointsman_apis.errors import SERVER_ERROR
from pointsman_core.refusal import Refusal

FAILED: Final = 500
"""From this status on, an answer of Envoy's own means that no endpoint gave one; below, that a filter refused it."""
_TOO_LARGE: Final = 413


class AnsweredByEnvoy(Refusal):
    """Envoy ended a request that hadn't been sent on."""

    def __init__(self, status: int, details: str) -> None:
        """`details` are Envoy's `response.code_details`."""
        detail = f"Envoy ended the request with {status}: {details or 'it does not say why'}"
        if status == _TOO_LARGE:
            # Only Envoy knows how much it holds.
            message = "The body is larger than the proxy before this gateway accepts; send a shorter one."
            super().__init__(status, message, code="body_too_large", detail=detail)
        elif 400 <= status < FAILED:
            message = f"The proxy before this gateway refused the request with status {status}."
            super().__init__(status, message, code="refused_by_proxy", detail=detail)
        else:
            message = "The proxy before this gateway ended the request; try again shortly."
            status = status if status in (503, 504) else 502
            super().__init__(status, message, type=SERVER_ERROR, code="ended_by_proxy", detail=detail)


def unanswered(status: int) -> Refusal:
    """No endpoint answered; Envoy does, with `status`."""
    if status == 504:
        return Refusal(504, "The engine did not answer in time.", type=SERVER_ERROR, code="engine_timeout")
    return Refusal(
        503 if status == 503 else 502,
        "No engine that was tried could be reached and answered.",
        type=SERVER_ERROR,
        code="engine_failed",
        retry_after_s=1.0 if status == 503 else None,
    )
