"""How many extra attempts an edge may make, so that retries don't multiply an overload."""

from typing import Final

RATIO: Final = 0.1
"""Attempts earned by each request: at most 10 % of the request rate."""
BURST: Final = 200.0
"""Attempts that may be saved: the requests that one dying engine leaves behind at once."""


class RetryBudget:
    """A token bucket that requests fill and further attempts empty."""

    def __init__(self, ratio: float = RATIO, burst: float = BURST) -> None:
        self._ratio = ratio
        self._burst = burst
        self._saved = burst

    def earn(self) -> None:
        """A request arrived."""
        self._saved = min(self._burst, self._saved + self._ratio)

    def spend(self) -> bool:
        """Whether one more attempt may be made; takes it from the budget."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
