"""The clocks of edges, as far as this process knows them.

A request's deadline is a time of day by its edge's clock. Hosts' clocks differ, by seconds or hours where nothing sets
them, and a stage that is ahead would drop each request as too late. So a message says what its edge's clock shows when
it is sent, and a receiver reads deadlines by that clock.

No message says how long it was under way. The message that took the shortest time in the last half minute to a minute
counts as having taken none; a later one is known to be late by the time that it took longer.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

WINDOW_MS: Final = 30_000
"""The least of this window and of the one before it counts, so what is remembered is 30 to 60 s old at most: a pair of
clocks drifts apart by some milliseconds in that time."""
MOST: Final = 4096
"""Clocks that are kept; the one that was longest unheard goes first."""
STEP_MS: Final = 100
"""A change of the time of day against the clock that is never set, from which on the clock counts as set."""


class Reading(NamedTuple):
    """The time of an edge's clock when a message was sent."""

    edge: str
    setting: int
    """How often the clock was set since the edge began. A new setting voids earlier readings."""
    at_ms: int
    """Unix time in milliseconds."""


class _Clock:
    __slots__ = ("before", "began_ms", "least", "setting")

    def __init__(self, setting: int, ahead: int, began_ms: int) -> None:
        self.setting = setting
        self.least = self.before = ahead
        self.began_ms = began_ms

    @property
    def behind(self) -> int:
        """Milliseconds from the edge's clock to the one of this host that is never set."""
        return min(self.least, self.before)


class EdgeClocks:
    """One per process. An edge that was never heard of is taken for one with this host's clock."""

    def __init__(
        self, time_ns: Callable[[], int] = time.time_ns, running_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """The host's clocks, in nanoseconds: the time of day, and one that is never set."""
        self._time_ns: Final = time_ns
        self._running_ns: Final = running_ns
        self._clocks: OrderedDict[str, _Clock] = OrderedDict()
        self._own: set[str] = set()
        """Edges of this process."""
        self._setting = 0
        self._offset_ms = self._unix_ms() - self._running_ms()

    def learn_time(self, reading: Reading) -> int:
        """Learn from a message that arrives now. Returns the time by the edge's clock, in Unix milliseconds."""
        if reading.edge in self._own:
            return self._unix_ms()
        now_ms = self._running_ms()
        ahead = now_ms - reading.at_ms
        clock = self._clocks.get(reading.edge)
        if clock is None or clock.setting != reading.setting:
            clock = self._clocks[reading.edge] = _Clock(reading.setting, ahead, now_ms)
            if len(self._clocks) > MOST:
                self._clocks.popitem(last=False)
        elif now_ms - clock.began_ms > WINDOW_MS:
            clock.before, clock.least, clock.began_ms = clock.least, ahead, now_ms
        elif ahead < clock.least:
            clock.least = ahead
        self._clocks.move_to_end(reading.edge)
        return now_ms - clock.behind

    def is_past(self, deadline_ms: int | None, reading: Reading | None) -> bool:
        """Whether a message that arrives now comes after its deadline. A message without `reading` is of a version that
        doesn't send it, and is read by this host's clock."""
        now_ms = self._unix_ms() if reading is None else self.learn_time(reading)
        return deadline_ms is not None and now_ms > deadline_ms

    def tell_time(self, edge: str) -> int:
        """The time by this edge's clock, in Unix milliseconds."""
        return self.read_clock(edge).at_ms

    def read_clock(self, edge: str) -> Reading:
        """The time of its clock that a message about a request of this edge carries."""
        clock = self._clocks.get(edge)
        if clock is None:
            return self._read_host_clock(edge)
        return Reading(edge, clock.setting, self._running_ms() - clock.behind)

    def read_own_clock(self, edge: str) -> Reading:
        """Like `read_clock`, for an edge of this process."""
        self._own.add(edge)
        return self._read_host_clock(edge)

    def _read_host_clock(self, edge: str) -> Reading:
        now_ms = self._unix_ms()
        offset_ms = now_ms - self._running_ms()
        if abs(offset_ms - self._offset_ms) > STEP_MS:
            self._offset_ms = offset_ms
            self._setting += 1
        return Reading(edge, self._setting, now_ms)

    def _unix_ms(self) -> int:
        return self._time_ns() // 1_000_000

    def _running_ms(self) -> int:
        return self._running_ns() // 1_000_000
