"""The intervals of reading an engine and of publishing its load. Times in seconds of any monotonic clock."""

from dataclasses import dataclass, field
from typing import Final

ASKED_FREELY: Final = 20
"""Up to this number, the engines of one process are read as often as a single one."""
LONGEST_REST: Final = 5.0
"""Highest factor by which an engine at rest is read less often, however many engines are watched."""


class Company:
    """The engines that one process asks. Those at rest are asked about as often, all together, as `ASKED_FREELY` would
    be."""

    def __init__(self) -> None:
        self.engines = 1

    @property
    def rest_factor(self) -> float:
        """Factor by which an engine at rest is read less often than if it were alone."""
        return min(LONGEST_REST, max(1.0, self.engines / ASKED_FREELY))


@dataclass(frozen=True, slots=True)
class ReadingPace:
    """The pause between two readings: short while they differ, growing while they don't."""

    busy_s: float = 0.05
    idle_s: float = 0.2
    company: Company = field(default_factory=Company, compare=False)

    def next_gap(self, gap: float, *, changed: bool, resting: bool = False) -> float:
        """Seconds from the start of a reading to the start of the next; `gap` is the one before. `resting`: the engine
        has nothing to do."""
        longest = self.idle_s * (self.company.rest_factor if resting else 1.0)
        return self.busy_s if changed else min(longest, max(self.busy_s, gap * 2))


class ReportPace:
    """When the next report is due: `min_gap_s` after the one before when something changed, else `max_gap_s`."""

    def __init__(self, min_gap_s: float, max_gap_s: float) -> None:
        self._min_gap_s = min_gap_s
        self._max_gap_s = max_gap_s
        self._told_at = float("-inf")
        self._changed = False
        self._urgent = False

    def note_change(self, *, urgent: bool = False) -> None:
        """There is something new; `urgent` (the state changed) doesn't wait for the gap."""
        self._changed = True
        self._urgent = self._urgent or urgent

    def note_report(self, now: float) -> None:
        """A report was sent."""
        self._told_at = now
        self._changed = self._urgent = False

    def due_in(self, now: float) -> float:
        """Seconds until a report is due; 0 when it is."""
        if self._urgent:
            return 0.0
        gap = self._min_gap_s if self._changed else self._max_gap_s
        return max(0.0, self._told_at + gap - now)
