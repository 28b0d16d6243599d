"""How many extra attempts an edge may make in a pool, so that retries don't multiply an overload."""

from typing import Final

RATIO: Final = 0.1
"""Attempts earned by each request: at most 10 % of the request rate."""
BURST: Final = 200.0
"""Attempts that may be saved: the requests that one dying engine leaves behind at once."""


class RetryBudget:
    """One pool's: a token bucket that requests fill and further attempts empty."""

    def __init__(self, ratio: float = RATIO, burst: float = BURST) -> None:
        self._ratio = ratio
        self._burst = burst
        self._saved = burst
        self.requests = 0
        """Requests that arrived since the last attempt was asked for."""
        self.refused = 0
        """Attempts that the budget had no room for."""

    def spend(self) -> bool:
        """Whether one more attempt may be made; takes it from the budget."""
        self._saved = min(self._burst, self._saved + self._ratio * self.requests)
        self.requests = 0
        if self._saved < 1.0:
            self.refused += 1
            return False
        self._saved -= 1.0
        return True


class RetryBudgets:
    """By pool: the failures of one pool leave the others' attempts alone."""

    def __init__(self) -> None:
        self._of: Final[dict[str, RetryBudget]] = {}

    def of(self, pool: str) -> RetryBudget:
        """The pool's budget."""
        budget = self._of.get(pool)
        if budget is None:
            budget = self._of[pool] = RetryBudget()
        return budget

    @property
    def refused(self) -> int:
        """Attempts that no budget had room for."""
        return sum(budget.refused for budget in self._of.values())
