"""Growing pauses between attempts to wake an engine. Pure."""

import math
from typing import Final

from pointsman_contracts.demand import wake_pause_s

SETTLED_S: Final = 60.0
"""An engine that sleeps again sooner after it was woken, and is wanted again, was woken in vain."""


class WakePauses:
    """The attempts so far. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self.retry_at = -math.inf
        """No attempt is made before."""
        self._woken_at: float | None = None

    def note_failure(self, now: float) -> None:
        """An attempt failed."""
        self._woken_at = None
        self.failures += 1
        self.retry_at = now + wake_pause_s(self.failures)

    def note_awake(self, now: float) -> None:
        """An attempt led to an engine that serves."""
        self._woken_at = now

    def judge_last(self, now: float) -> str:
        """The engine sleeps again, and is wanted: why the last attempt failed after all; empty when it didn't."""
        woken_at, self._woken_at = self._woken_at, None
        if woken_at is None:
            return ""
        if now - woken_at >= SETTLED_S:
            self.failures = 0
            return ""
        self.note_failure(now)
        return f"it slept again within {now - woken_at:.0f} s"
