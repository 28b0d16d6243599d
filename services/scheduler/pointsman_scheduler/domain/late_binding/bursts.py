"""Detects bursts of requests: the first request of a burst does well to wait for the others."""

import math
from typing import Final

GAP_MS: Final = 5.0
"""Requests that follow each other within this time belong to one burst."""
LONGEST_MS: Final = 25.0
"""A request later than this after a burst's first request starts another burst."""
_GAIN: Final = 0.1
_GAPS: Final = 3.0
"""A burst counts as over after so many of its usual gaps without a request."""
_LEAST_MS: Final = 0.5


class Bursts:
    """Times are milliseconds. Gathering is worth it where bursts have more requests than there are engines without
    work, for only then does one wait for another."""

    def __init__(self) -> None:
        self._first_at = -math.inf
        self._last_at = -math.inf
        self._count = 0
        self._gap = GAP_MS / _GAPS
        """Between two requests of a burst, as a running mean."""
        self.size = 1.0
        """Requests of a burst, as a running mean."""

    def came(self, now: float) -> None:
        """A request came."""
        gap = now - self._last_at
        if gap <= GAP_MS and now - self._first_at <= LONGEST_MS:
            self._count += 1
            self._gap += _GAIN * (gap - self._gap)
        else:
            if self._count:
                self.size += _GAIN * (self._count - self.size)
            self._count, self._first_at = 1, now
        self._last_at = now

    def over_at(self, alone: bool = True) -> float:
        """When the burst of the last request is over if none follows. With other schedulers the pause is the longest:
        it takes time to hear of the part of the burst that they got."""
        pause = min(GAP_MS, max(_LEAST_MS, _GAPS * self._gap)) if alone else GAP_MS
        return min(self._last_at + pause, self._first_at + LONGEST_MS)
