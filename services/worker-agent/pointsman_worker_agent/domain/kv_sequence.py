"""The numbers of an engine's batches: detects missing batches, repeated ones, and a restart of the engine."""

from enum import Enum
from typing import Final

END: Final = (1 << 64) - 1
"""Number of the frame that ends a replay (-1)."""


class Next(Enum):
    """The action for a live batch."""

    TAKE = "take"
    SKIP = "skip"
    """It was replayed already."""
    REPLAY = "replay"
    """Earlier batches are missing. Ask the engine for them, apply them, then apply this one."""
    RESET = "reset"
    """The engine counts anew: earlier messages are void. Then ask for the batches since the restart."""


class BatchSequence:
    """Engines count from 0 and keep the last batches for replay."""

    def __init__(self) -> None:
        self.missed = 0
        """Batches that no replay brought back."""
        self._last = -1
        self._last_live = -1

    def restart(self) -> None:
        """The engine began a new life: no batch of it has come yet."""
        self._last = self._last_live = -1

    @property
    def wanted(self) -> int:
        """The number that follows the last one known."""
        return self._last + 1

    def place_live_batch(self, number: int) -> Next:
        """A batch came by itself."""
        if number <= self._last_live:
            self._last = self._last_live = -1
            return Next.RESET
        if number <= self._last:
            self._last_live = number
            return Next.SKIP
        return Next.TAKE if number == self._last + 1 else Next.REPLAY

    def accept_replayed(self, number: int) -> bool:
        """A batch came on request. Whether it is to be taken; those known already aren't."""
        if number <= self._last:
            return False
        if number > self._last + 1:
            self.missed += number - self._last - 1
        self._last = number
        return True

    def taken(self, number: int) -> int:
        """A live batch is taken. Returns how many are missing before it for good."""
        gap = max(0, number - self._last - 1)
        self.missed += gap
        self._last = self._last_live = number
        return gap
