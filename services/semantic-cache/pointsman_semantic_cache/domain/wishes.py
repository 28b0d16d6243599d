"""The cache directives of a request (RFC 9111 §5.2.1)."""

from collections.abc import Mapping
from typing import NamedTuple


class Wishes(NamedTuple):
    """Of one request."""

    look: bool = True
    """An answer that is kept will do."""
    keep: bool = True
    """The answer may be kept."""
    max_age_s: float | None = None
    """An answer that is kept will do when it isn't older."""


def wishes(headers: Mapping[str, str]) -> Wishes:
    """From headers by lower-case name. `cache-control: no-store` passes the cache by altogether, `no-cache` and
    `max-age=0` ask for a new answer, which may be kept. `pragma: no-cache` is the same where there is none."""
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
