"""Reads the rate limits in the headers of providers' answers."""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

_QUOTAS: Final = (
    # https://platform.openai.com/docs/guides/rate-limits, also sent by Azure OpenAI
    ("x-ratelimit-remaining-requests", "x-ratelimit-limit-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-limit-tokens"),
    # https://docs.anthropic.com/en/api/rate-limits
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-limit"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-limit"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-limit"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-limit"),
)
_PAUSING: Final = frozenset({429, 503, 529})
_MILLISECONDS: Final = ("retry-after-ms", "x-ms-retry-after-ms")
"""Azure's headers, beside `retry-after` in whole seconds (Azure/azure-sdk-for-python #9092)."""
PAUSE_HEADERS: Final = (*_MILLISECONDS, "retry-after")


class ProviderLimits(NamedTuple):
    """The provider's limits, as an answer reports them."""

    retry_after_s: float | None = None
    """When it takes requests again, from now."""
    remaining: float | None = None
    """Part of the request or token quota that is left, in [0,1]; the smallest."""


def limits(status: int, headers: Mapping[str, str], now_s: float, max_pause_s: float) -> ProviderLimits:
    """Read an answer's headers (lower-case names). `now_s` is unix time; a longer pause than `max_pause_s` is cut to
    that."""
    left = [
        part for remaining, limit in _QUOTAS if (part := _part(headers.get(remaining), headers.get(limit))) is not None
    ]
    pause = pause_of(headers, now_s) if status in _PAUSING else None
    return ProviderLimits(None if pause is None else min(pause, max_pause_s), min(left) if left else None)


def pause_of(headers: Mapping[str, str], now_s: float) -> float | None:
    """Seconds that an error asks its client to wait; None where it doesn't, or can't be read."""
    for name in _MILLISECONDS:
        milliseconds = _number(headers.get(name))
        if milliseconds is not None:
            return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or not text:
        return seconds
    at = _unix_time(text)
    if at is None:
        return None
    # By the provider's own clock, which may be wrong.
    told = _unix_time(headers.get("date"))
    return max(0.0, at - (now_s if told is None else told))


def _unix_time(text: str | None) -> float | None:
    """The time of an HTTP date; None for anything else."""
    if not text:
        return None
    try:
        at = parsedate_to_datetime(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _part(remaining: str | None, limit: str | None) -> float | None:
    left, whole = _number(remaining), _number(limit)
    if left is None or not whole:
        return None
    return min(1.0, left / whole)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 1e12 else None
