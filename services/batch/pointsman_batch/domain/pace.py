"""How many lines may be at work at once: one more while all goes well, half after a refusal. Time is an argument."""

from typing import Final

LEAST: Final = 1.0
FIRST: Final = 4.0
"""Lines at work at once in the beginning."""
_SHRINK: Final = 0.5
_PAUSE_S: Final = 1.0
"""After a refusal without a time of its own nothing begins for this long."""
LONGEST_PAUSE_S: Final = 5.0
"""No refusal stops all lines for longer: those of other models may have room."""
_ONE_REFUSAL_S: Final = 0.5
"""Refusals within this time have one cause."""


class Pace:
    """Additive increase, multiplicative decrease (RFC 5681), over the lines of one process.

    A refusal is an answer that says that the gateway, an engine or a provider has no room.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = float(most)
        self._limit = min(FIRST, self._most)
        self._paused_until = 0.0
        self._shrunk_at = float("-inf")
        self.at_work = 0

    @property
    def limit(self) -> int:
        """Lines that may be at work at once."""
        return int(self._limit)

    def may_begin(self, now: float) -> bool:
        """Whether one more line may begin."""
        return now >= self._paused_until and self.at_work < self.limit

    def begin_line(self) -> None:
        """A line is at work."""
        self.at_work += 1

    def end_line(self) -> None:
        """It is no longer."""
        self.at_work -= 1

    def record_answer(self) -> None:
        """An answer that came: as many answers as lines are at work allow one line more."""
        self._limit = min(self._most, self._limit + 1.0 / max(1.0, self._limit))

    def record_refusal(self, now: float, retry_after_s: float | None) -> None:
        """There was no room. `retry_after_s`: as the refusal says."""
        pause = _PAUSE_S if retry_after_s is None else min(retry_after_s, LONGEST_PAUSE_S)
        self._paused_until = max(self._paused_until, now + pause)
        if now - self._shrunk_at >= _ONE_REFUSAL_S:
            self._shrunk_at = now
            self._limit = max(LEAST, self._limit * _SHRINK)
