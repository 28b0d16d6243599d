"""How late this process runs, by its own timers, by the NATS server's answers and by the kernel's word.

A peer that is late on a machine where everything is late isn't gone: who judges a silence takes this into account. The
measure is the process's, whatever buses and connections it has.
"""

from pathlib import Path
from typing import Final

HALF_LIFE_S: Final = 2.0
"""A lag counts half after so long without another one."""
SLACK: Final = 3.0
"""How many times its own lag a process allows to others: a message passes the sender, the server and this process."""
MOST_SLACK_S: Final = 10.0
UNNOTICED_S: Final = 0.02
"""A lag up to here is an event loop at work."""
PRESSING: Final = 0.5
"""The least share of waiting time that indicates a busy machine; below it, processes just take turns."""
PRESSED_S: Final = 0.2
"""The assumed lag while some process always waits for a CPU: a peer may be the one that waits longest."""
READ_EVERY_S: Final = 1.0
PRESSURE_FILE: Final = Path("/proc/pressure/cpu")


class LagMeter:
    """The largest lag lately, fading. Times are of any monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._lag_s = 0.0
        self._at = 0.0

    def note_lag(self, late_s: float, now: float) -> None:
        """Something that was due, or was asked for, came so late."""
        self._lag_s = max(late_s - UNNOTICED_S, self._faded(now))
        self._at = now

    def slack_s(self, now: float) -> float:
        """How much longer than usual others may take now."""
        return min(SLACK * self._faded(now), MOST_SLACK_S)

    def _faded(self, now: float) -> float:
        return self._lag_s * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S)


class Pressure:
    """The share of time in which some process of the machine waited for a CPU, as Linux tells it."""

    def __init__(self, file: Path = PRESSURE_FILE) -> None:
        self._file: Final = file
        self._total_us: int | None = None
        self._read_at = -READ_EVERY_S
        self._share = 0.0

    def waiting_share(self, now: float) -> float:
        """From 0 to 1, over the last `READ_EVERY_S`; 0 if the kernel doesn't report it."""
        since = now - self._read_at
        if since >= READ_EVERY_S:
            total, before = self._read(), self._total_us
            waited_us = 0 if total is None or before is None else total - before
            self._share = min(1.0, max(0.0, waited_us / 1e6 / since))
            self._total_us, self._read_at = total, now
        return self._share

    def _read(self) -> int | None:
        try:
            first = self._file.read_text(encoding="ascii").split("\n", 1)[0]
        except OSError:
            return None
        _, _, total = first.rpartition("total=")
        return int(total) if first.startswith("some") and total.isdecimal() else None


LAG: Final = LagMeter()
"""This process's."""
_PRESSURE: Final = Pressure()


def measured_slack(due: float, now: float) -> float:
    """The slack of this process's peers; called by a timer that was due at `due`."""
    LAG.note_lag(now - due, now)
    share = _PRESSURE.waiting_share(now)
    if share >= PRESSING:
        LAG.note_lag(PRESSED_S * share, now)
    return LAG.slack_s(now)
