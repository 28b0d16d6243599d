"""Reads the rate limits in the headers of providers' answers."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from pointsman_providers.error_status import NO_QUOTA
from pointsman_providers.reported_error import ProviderError

_QUOTAS: Final = (
    # https://platform.openai.com/docs/guides/rate-limits, also sent by Azure OpenAI: resets are durations
    *(
        (f"x-ratelimit-remaining-{what}", f"x-ratelimit-limit-{what}", f"x-ratelimit-reset-{what}")
        for what in ("requests", "tokens")
    ),
    # https://openrouter.ai/docs/api-reference/limits: Unix time in milliseconds
    ("x-ratelimit-remaining", "x-ratelimit-limit", "x-ratelimit-reset"),
    # https://docs.anthropic.com/en/api/rate-limits: resets are times of RFC 3339
    *(
        (
            f"anthropic-ratelimit-{what}-remaining",
            f"anthropic-ratelimit-{what}-limit",
            f"anthropic-ratelimit-{what}-reset",
        )
        for what in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)
"""Headers of what is left of a quota, of all of it, and of when there is all of it again."""
_PAUSING: Final = frozenset({429, 503, 529})
_MILLISECONDS: Final = ("retry-after-ms", "x-ms-retry-after-ms")
"""Azure's headers, beside `retry-after` in whole seconds (Azure/azure-sdk-for-python #9092)."""
PAUSE_HEADERS: Final = (*_MILLISECONDS, "retry-after")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_LEAST_UNIX_S: Final = 1e9
"""Seconds from which on a number is a Unix time: no pause lasts for decades."""
_LEAST_UNIX_MS: Final = 1e12


class ProviderLimits(NamedTuple):
    """The provider's limits, as an answer reports them."""

    retry_after_s: float | None = None
    """When it takes requests again, from now."""
    remaining: float | None = None
    """Part of the request or token quota that is left, in [0,1]; the smallest."""


def limits(
    status: int, headers: Mapping[str, str], now_s: float, max_pause_s: float, error: ProviderError | None = None
) -> ProviderLimits:
    """Read an answer's headers (lower-case names). `status`: of what is at fault; `now_s` is unix time; a longer pause
    than `max_pause_s` is cut to that, and an account without quota gets that. `error`: the answer's document."""
    left = [part for names in _QUOTAS if (part := _part(headers.get(names[0]), headers.get(names[1]))) is not None]
    pause = max_pause_s if status == NO_QUOTA else None
    if status in _PAUSING:
        pause = pause_of(headers, now_s)
        if pause is None and error is not None and error.pause is not None:
            pause = _wait(error.pause, headers, now_s)
        if pause is None:
            resets = [headers.get(reset) for remaining, _, reset in _QUOTAS if _number(headers.get(remaining)) == 0]
            pause = max((wait for text in resets if (wait := _wait(text, headers, now_s)) is not None), default=None)
    return ProviderLimits(None if pause is None else min(pause, max_pause_s), min(left) if left else None)


def pause_of(headers: Mapping[str, str], now_s: float) -> float | None:
    """Seconds that an error asks its client to wait; None where it doesn't, or can't be read."""
    for name in _MILLISECONDS:
        milliseconds = _number(headers.get(name))
        if milliseconds is not None:
            return milliseconds / 1000
    return _wait(headers.get("retry-after"), headers, now_s)


def _wait(text: str | None, headers: Mapping[str, str], now_s: float) -> float | None:
    """The seconds until the time that is written as seconds, a duration, a Unix time or a date; None for anything
    else."""
    seconds = _number(text)
    if not text or (seconds is not None and seconds < _LEAST_UNIX_S):
        return seconds
    if _DURATION.fullmatch(text.strip()) is not None:
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    at = _unix_time(text) if seconds is None else seconds / (1000 if seconds >= _LEAST_UNIX_MS else 1)
    if at is None:
        return None
    # By the provider's own clock, which may be wrong.
    told = _unix_time(headers.get("date"))
    return max(0.0, at - (now_s if told is None else told))


def _unix_time(text: str | None) -> float | None:
    """The time of a date of HTTP or RFC 3339; None for anything else."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
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
    return value if value is not None and 0 <= value < 1e15 else None
