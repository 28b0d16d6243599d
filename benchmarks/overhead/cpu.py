"""CPU time of running processes, as the kernel accounts it."""

import os
from collections.abc import Mapping
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def seconds(pid: int) -> float:
    """User and system CPU seconds that the process (all threads) has used; 0.0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def resident_mib(pid: int) -> float:
    """Resident memory in MiB; 0.0 when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Meter:
    """CPU seconds of named processes since the meter was made."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._start = {name: seconds(pid) for name, pid in pids.items()}

    def read(self) -> dict[str, float]:
        """Seconds by name."""
        return {name: seconds(pid) - self._start[name] for name, pid in self._pids.items()}
