"""Measures how fast the queue drains, for `Retry-After`."""

import math
from collections import deque
from typing import Final

WINDOW_S: Final = 30
LONGEST_S: Final = 600.0


class DrainRate:
    """Departures to engines over the last half minute in which something waited.

    Time without a waiting request doesn't count: departures then show the arrivals, not the capacity.
    """

    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._busy_before = 0.0
        self._counts: deque[tuple[int, int]] = deque()
        """Second of busy time and departures in it; seconds without any are absent."""
        self._total = 0

    def note_busy(self, now: float) -> None:
        """At least one request waits."""
        if self._busy_since is None:
            self._busy_since = now

    def note_idle(self, now: float) -> None:
        """No request waits any more."""
        self._busy_before = self._clock(now)
        self._busy_since = None

    def count_departure(self, now: float) -> None:
        """A waiting request was dispatched to an engine."""
        second = math.floor(self._clock(now))
        if self._counts and self._counts[-1][0] == second:
            self._counts[-1] = (second, self._counts[-1][1] + 1)
        else:
            self._counts.append((second, 1))
        self._total += 1
        self._forget(second)

    def wait_for(self, requests: int, now: float) -> float | None:
        """Seconds until so many requests have gone, at least 1 and at most `LONGEST_S`; None when none went lately."""
        clock = self._clock(now)
        self._forget(math.floor(clock))
        if not self._total:
            return None
        measured = min(float(WINDOW_S), max(1.0, clock))
        return min(LONGEST_S, max(1.0, requests * measured / self._total))

    def _clock(self, now: float) -> float:
        return self._busy_before + (now - self._busy_since if self._busy_since is not None else 0.0)

    def _forget(self, second: int) -> None:
        while self._counts and self._counts[0][0] <= second - WINDOW_S:
            self._total -= self._counts.popleft()[1]
