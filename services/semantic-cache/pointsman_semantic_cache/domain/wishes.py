"""The cache directives of a request (RFC 9111 §5.2.1)."""

from collections.abc import Mapping
from typing import NamedTuple


class Wishes(NamedTuple):
    """The cache directives of one request."""

    look: bool = True
    """Whether a cached answer may be used."""
    keep: bool = True
    """Whether the answer may be kept."""
    max_age_s: float | None = None
    """Greatest age of a cached answer in seconds; None: any."""


def wishes(headers: Mapping[str, str]) -> Wishes:
    """Read the directives from headers (lower-case names). `cache-control: no-store` bypasses the cache; `no-cache` and
    `max-age=0` ask for a new answer, which may be kept. Without `cache-control`, `pragma: no-cache` means
    `no-cache`."""
    control = headers.get("cache-control")
    if control is None:
        return Wishes(look=headers.get("pragma", "").strip().lower() != "no-cache")
    directives = {
        name.strip().lower(): value.strip().strip('"')
        for name, _, value in (part.partition("=") for part in control.split(","))
    }
    if "no-store" in directives:
        return Wishes(look=False, keep=False)
    age = directives.get("max-age", "")
    max_age_s = float(age) if age.isascii() and age.isdecimal() else None
    return Wishes(look="no-cache" not in directives and max_age_s != 0, max_age_s=max_age_s)
