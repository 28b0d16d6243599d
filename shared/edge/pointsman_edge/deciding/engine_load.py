"""This edge's own view of engines: its open attempts, and the engines that failed lately."""

from typing import Final

AVOIDED_S: Final = 5.0
"""An engine that failed is the last choice for this long."""
_REMEMBERED: Final = 4096


class EngineLoad:
    """By worker. Time is in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._failed: dict[str, float] = {}

    def began(self, worker: str) -> None:
        """An attempt begins."""
        self._open[worker] = self._open.get(worker, 0) + 1

    def ended(self, worker: str) -> None:
        """The attempt has ended."""
        left = self._open[worker] - 1
        if left:
            self._open[worker] = left
        else:
            del self._open[worker]

    def failed(self, worker: str, now: float) -> bool:
        """Record a failure. Returns whether it is the first one lately."""
        first = not self.avoided(worker, now)
        if len(self._failed) >= _REMEMBERED:
            self._failed = {name: at for name, at in self._failed.items() if now - at < AVOIDED_S}
        self._failed[worker] = now
        return first

    def open_on(self, worker: str) -> int:
        """Open attempts at this worker."""
        return self._open.get(worker, 0)

    def avoided(self, worker: str, now: float) -> bool:
        """Whether it failed lately."""
        at = self._failed.get(worker)
        return at is not None and now - at < AVOIDED_S
