"""A clock that runs only while this process receives messages."""

from typing import Final

LONGEST_STEP_S: Final = 0.2
"""Between two ticks; a longer time means that this process itself was stopped."""


class ListeningClock:
    """Seconds of listening, from seconds of a monotonic clock.

    After a lost connection, or when this process was stopped itself, the workers didn't fall silent.
    """

    def __init__(self) -> None:
        self._listened = 0.0
        self._ticked: float | None = None
        self._listening = False

    def note_time(self, now: float, *, listening: bool) -> None:
        """Note the time; called every few dozen milliseconds."""
        self._listened = self.listened_seconds(now)
        self._ticked = now
        self._listening = listening

    def listened_seconds(self, now: float) -> float:
        """Seconds of listening until `now`."""
        if self._ticked is None or not self._listening:
            return self._listened
        return self._listened + min(max(now - self._ticked, 0.0), LONGEST_STEP_S)
