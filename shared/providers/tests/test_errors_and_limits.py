"""Providers' errors, and the room that their limits leave."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_providers.errors import answered_error, explained_answer, is_clients
from pointsman_providers.limits import limits


def told(status: int, body: bytes, retry_after_s: float | None = None) -> Refusal:
    """The client's error for an answer."""
    return explained_answer("far", answered_error(status, {}, body), retry_after_s)


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ({"error": {"message": "Bad n.", "type": "t", "param": "n", "code": "bad_n"}}, "Bad n.", "bad_n"),
        (
            {"type": "error", "error": {"type": "invalid_request_error", "message": "Bad."}},
            "Bad.",
            "invalid_request_error",
        ),
        ({"message": "Malformed input."}, "Malformed input.", "provider_refused"),
        ([{"error": {"code": 400, "message": "Bad.", "status": "INVALID_ARGUMENT"}}], "Bad.", "INVALID_ARGUMENT"),
        ({}, "The provider 'far' refused the request with status 400.", "provider_refused"),
        ([], "The provider 'far' refused the request with status 400.", "provider_refused"),
    ],
)
def test_a_request_that_is_wrong_is_explained_in_the_providers_words(body: JsonValue, message: str, code: str) -> None:
    refusal = told(400, orjson.dumps(body))
    assert (refusal.status, refusal.message, refusal.code) == (400, message, code)
    assert is_clients(400)


@pytest.mark.parametrize(
    ("status", "seen", "code"),
    [
        (429, 429, "rate_limit_exceeded"),
        (401, 502, "provider_credential"),
        (402, 502, "provider_quota"),
        (410, 502, "provider_lacks_model"),
        (403, 502, "provider_credential"),
        (408, 504, "provider_timeout"),
        (500, 502, "provider_failed"),
        (503, 503, "provider_unavailable"),
        (529, 503, "provider_unavailable"),
        (302, 502, "provider_failed"),
    ],
)
def test_an_error_that_the_client_cannot_mend_leaves_out_the_providers_words(status: int, seen: int, code: str) -> None:
    refusal = told(status, b'{"error": {"message": "No such luck: sk-canary"}}', 7.0)
    assert (refusal.status, refusal.code) == (seen, code)
    assert "canary" not in refusal.message
    assert refusal.retry_after_s == (7.0 if seen in (429, 503) else None)
    assert not is_clients(status)


@pytest.mark.requirement("S0-53")
@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, (None, None)),
        (429, {"retry-after": "30"}, (30.0, None)),
        (429, {"retry-after-ms": "1500", "retry-after": "2"}, (1.5, None)),
        (429, {"x-ms-retry-after-ms": "250", "retry-after": "1"}, (0.25, None)),
        (529, {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, (10.0, None)),
        (200, {"retry-after": "30"}, (None, None)),
        (429, {"retry-after": "soon"}, (None, None)),
        (429, {"retry-after": "20s"}, (20.0, None)),
        (429, {"retry-after": "1m30s"}, (90.0, None)),
        (429, {"retry-after": "250ms"}, (0.25, None)),
        (429, {"retry-after": "1784111787", "date": "Wed, 15 Jul 2026 10:36:17 GMT"}, (10.0, None)),
        (429, {"retry-after": "1784111787500", "date": "Wed, 15 Jul 2026 10:36:17 GMT"}, (10.5, None)),
        (429, {"retry-after": "1784111767", "date": "Wed, 15 Jul 2026 10:36:17 GMT"}, (0.0, None)),
        (402, {}, (300.0, None)),
        # What is left says when there is more; what has some left doesn't.
        (429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, (300.0, None)),
        (429, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"}, (1.5, None)),
        (429, {"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "6m0s"}, (None, None)),
        (
            429,
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "1994-11-06T08:49:37Z"},
            (10.0, None),
        ),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, (None, None)),
        (429, {"retry-after": "0"}, (0.0, None)),
        (429, {"retry-after": "-30"}, (None, None)),
        (429, {"retry-after": "NaN"}, (None, None)),
        (429, {"retry-after": "31536000"}, (300.0, None)),
        (429, {"retry-after-ms": "1e11"}, (300.0, None)),
        (429, {"retry-after": "Sun, 06 Nov 2094 08:49:37 GMT"}, (300.0, None)),
        (429, {"retry-after": "Sun, 06 Nov 99999 08:49:37 GMT"}, (None, None)),
        (429, {"retry-after": "Sun, 06 Nov 1994 08:49:07 GMT"}, (0.0, None)),
        # Its clock is a year fast.
        (503, {"retry-after": "Mon, 06 Nov 1995 08:49:37 GMT", "date": "Mon, 06 Nov 1995 08:49:30 GMT"}, (7.0, None)),
        (200, {"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "25"}, (None, 0.25)),
        (
            200,
            {
                "anthropic-ratelimit-requests-limit": "100",
                "anthropic-ratelimit-requests-remaining": "90",
                "anthropic-ratelimit-output-tokens-limit": "8000",
                "anthropic-ratelimit-output-tokens-remaining": "800",
            },
            (None, 0.1),
        ),
        (200, {"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0"}, (None, None)),
    ],
)
def test_limits_are_read_from_each_providers_headers(
    status: int, headers: dict[str, str], expected: tuple[float | None, float | None]
) -> None:
    assert limits(status, headers, 784_111_767.0, 300.0) == expected


def test_a_pause_in_the_details_of_an_error_counts_where_no_header_has_one() -> None:
    details: JsonValue = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}]
    body = orjson.dumps([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}}])
    error = answered_error(429, {}, body)
    assert limits(error.status, {}, 0.0, 300.0, error).retry_after_s == 34.07
    assert limits(error.status, {"retry-after": "2"}, 0.0, 300.0, error).retry_after_s == 2.0


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-limit-tokens"]), st.text()))
def test_no_header_is_an_error(headers: dict[str, str]) -> None:
    pause, remaining = limits(429, headers, 0.0, 300.0)
    assert pause is None or pause >= 0
    assert remaining is None


@given(st.integers(min_value=300, max_value=599), st.binary())
def test_every_refusal_of_a_provider_has_a_status_and_words(status: int, body: bytes) -> None:
    refusal = told(status, body)
    assert 400 <= refusal.status <= 599
    assert refusal.message
