"""The life of one process as a value: its state, and when it is restarted.

Pure: time is an argument, in seconds of any monotonic clock.
"""

import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

FIRST_DELAY_S: Final = 0.25
LONGEST_DELAY_S: Final = 10.0
STEADY_AFTER_S: Final = 20.0
"""A process that lived this long is started again as quickly as one that never crashed."""
TRIES_BEFORE_READY: Final = 3
"""A process that was never ready is given up after ending this number of times: another start won't help."""
SETTINGS_ARE_WRONG: Final = 78
"""Exit code of a service whose settings or configuration are refused (`EX_CONFIG` of sysexits.h)."""


class State(StrEnum):
    """The state of a process in its life."""

    PLANNED = "planned"
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    CRASHED = "crashed"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


class SupervisedProcess:
    """One process through all its restarts. Each method records an event and returns whether to report it."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.state = State.PLANNED
        self.why = ""
        """The reason for a state other than ready, in words."""
        self.starts = 0
        self.ever_ready = False
        self._started_at = 0.0
        self._delay = FIRST_DELAY_S

    def record_start(self, now: float) -> None:
        """A process was created."""
        self.starts += 1
        self.state = State.STARTING
        self.why = ""
        self._started_at = now

    def record_readiness(self, reasons: Mapping[str, str] | str | None) -> bool:
        """It answered the readiness check: None is ready; anything else names what is missing."""
        before = self.state
        if reasons is None:
            self.state, self.why, self.ever_ready = State.READY, "", True
            return before is not State.READY
        self.why = reasons if isinstance(reasons, str) else "; ".join(reasons.values())
        if before in (State.READY, State.NOT_READY):
            self.state = State.NOT_READY
        return before is State.READY

    def record_end(self, now: float, code: int) -> float | None:
        """It ended by itself. Returns after how many seconds to start it again, or None to give up."""
        self.why = how_it_ended(code)
        if code == SETTINGS_ARE_WRONG or (not self.ever_ready and self.starts >= TRIES_BEFORE_READY):
            self.state = State.GIVEN_UP
            return None
        if now - self._started_at >= STEADY_AFTER_S:
            self._delay = FIRST_DELAY_S
        self.state = State.CRASHED
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST_DELAY_S)
        return delay

    def record_stop(self) -> None:
        """It ended on request."""
        self.state, self.why = State.STOPPED, ""


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code == SETTINGS_ARE_WRONG:
        return "its settings or configuration were refused (exit code 78)"
    return f"ended with exit code {code}"
