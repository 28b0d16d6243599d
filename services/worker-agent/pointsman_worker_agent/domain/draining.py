"""Decides when a draining engine has finished its open requests."""

from typing import Final

QUIET_S: Final = 1.0
"""Seconds that an idle engine must stay idle: requests decided before every scheduler knew of the draining may still
arrive."""


class Draining:
    """From the moment the engine takes nothing new. Times in seconds of any monotonic clock."""

    def __init__(self, began: float, timeout_s: float, quiet_s: float = QUIET_S) -> None:
        self._give_up_at = began + timeout_s
        self._quiet_s = quiet_s
        self._idle_since: float | None = None

    def is_finished(self, now: float, *, idle: bool) -> bool:
        """Whether it has been idle for long enough."""
        if not idle:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= self._quiet_s

    def is_overdue(self, now: float) -> bool:
        """Whether it has exceeded its time limit."""
        return now >= self._give_up_at
