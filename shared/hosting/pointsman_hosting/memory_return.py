"""Gives memory back to the system after large requests.

glibc keeps what was freed for the next allocation: after bodies of 20 MB a process stays tens of MiB larger for as
long as it lives. It raises its threshold for blocks of their own to the largest block that it ever freed, so that the
next body of this size is cut from a heap that never shrinks. A fixed threshold gives the memory of a large body back
with the body. For what many small blocks leave behind there is `malloc_trim`, which returns every free page. It is
called when the process has grown, from a thread of its own, never by what handles a request.
"""

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

LOOK_S: Final = 10.0
"""How often a process looks at its size."""
GROWN_BYTES: Final = 8 * 2**20
"""Growth since the last time that is worth it."""
OWN_BLOCK_BYTES: Final = 2**20
"""An allocation of this size has its own mapping, which is returned when it is freed. A mapping costs 0.1 ms a MiB."""
TOP_BYTES: Final = 4 * 2**20
"""Free memory at the end of a heap that is kept."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class MemoryReturn:
    """Looks at the size of its process while it runs. One for each process."""

    def __init__(self, size: "Callable[[], int | None] | None" = None, trim: Callable[[], None] | None = None) -> None:
        """`size` and `trim`: of this process, unless a test has others."""
        self._size: Final = size or resident_bytes
        self._trim: Final = trim or glibc_trim()
        self._after: int | None = None
        """Bytes after the last trim; None while none was made."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check; no-op if memory can't be returned on this platform."""
        if self._trim is not None and self._size() is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._turn)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def return_if_grown(self) -> threading.Thread | None:
        """Trim in a thread if the process has grown; returns the thread."""
        size = self._size()
        if self._trim is None or size is None or (self._after is not None and size < self._after + GROWN_BYTES):
            return None
        thread = threading.Thread(target=self._work, name="memory-return", daemon=True)
        thread.start()
        return thread

    def _turn(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._turn)
        self.return_if_grown()

    def _work(self) -> None:
        if self._trim is not None:
            self._trim()
            self._after = self._size()


def resident_bytes() -> int | None:
    """Resident memory of this process; None if the kernel doesn't report it."""
    try:
        return int(STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


def glibc_trim() -> Callable[[], None] | None:
    """`malloc_trim(0)`, with thresholds that are fixed from here on; None where the C library has none."""
    try:
        library = ctypes.CDLL(None)
        trim, set_option = library.malloc_trim, library.mallopt
    except (AttributeError, OSError):
        return None
    set_option(_M_MMAP_THRESHOLD, OWN_BLOCK_BYTES)
    set_option(_M_TRIM_THRESHOLD, TOP_BYTES)

    def work() -> None:
        trim(0)

    return work
