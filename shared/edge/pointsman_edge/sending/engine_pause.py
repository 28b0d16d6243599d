"""The pause that an engine asks for with an error, as its client may have it: clients take what they read for an
order."""

import math
import time
from collections.abc import Iterable
from typing import Final

from pointsman_providers.limits import PAUSE_HEADERS, pause_of

LONGEST_S: Final = 300.0
"""Engines are well again sooner, or never."""
PAUSES: Final = frozenset(name.encode("ascii") for name in PAUSE_HEADERS)
_JSON: Final = (b"content-type", b"application/json")
Header = tuple[bytes, bytes]


def engine_pause(headers: Iterable[Header]) -> list[Header] | None:
    """The headers in place of those in `PAUSES` (lower-case names), none where they can't be read; None where there
    is none of them."""
    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if told.keys().isdisjoint(PAUSE_HEADERS):
        return None
    pause_s = pause_of(told, time.time())
    return [] if pause_s is None else [(b"retry-after", b"%d" % math.ceil(min(pause_s, LONGEST_S)))]


def error_headers(headers: list[Header]) -> list[Header]:
    """Those of an engine's error, whose body becomes JSON."""
    kept = [header for header in headers if header[0] != b"content-type" and header[0] not in PAUSES]
    return [*kept, _JSON, *(engine_pause(headers) or ())]
