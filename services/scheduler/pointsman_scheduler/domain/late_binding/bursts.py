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
_DEVIATIONS: Final = 4.0
"""Mean deviations beyond the usual delay after which nothing more is heard of a burst; as in TCP's timeout."""


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
        self._heard = 0
        """Reports of other schedulers' parts of bursts."""
        self._delay = 0.0
        """From this scheduler's part of a burst until another one's is reported, as a running mean."""
        self._deviation = 0.0
        """The running mean of this delay's deviation."""

    def note_arrival(self, now: float) -> None:
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

    def note_peer_burst(self, now: float) -> None:
        """Another scheduler reported new requests."""
        delay = now - self._last_at
        if delay > GAP_MS:
            return
        self._heard += 1
        gain = max(_GAIN, 1.0 / self._heard)
        self._deviation += gain * (abs(delay - self._delay) - self._deviation)
        self._delay += gain * (delay - self._delay)

    @property
    def theirs_ms(self) -> float:
        """A report of another scheduler takes about this long at most; the longest pause while that is unknown."""
        if not self._heard:
            return GAP_MS
        return min(GAP_MS, self._delay + _DEVIATIONS * self._deviation + _LEAST_MS)

    def over_at(self, alone: bool = True) -> float:
        """When the burst of the last request is over if none follows. With other schedulers, their part of it is known
        then."""
        pause = min(GAP_MS, max(_LEAST_MS, _GAPS * self._gap))
        return min(self._last_at + (pause if alone else max(pause, self.theirs_ms)), self._first_at + LONGEST_MS)
