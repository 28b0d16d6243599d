"""How many extra attempts an edge may make in a pool, so that retries don't multiply an overload.

As in Finagle's retry budget
(https://twitter.github.io/finagle/docs/com/twitter/finagle/service/RetryBudget$.html): each request earns a part of an
attempt, and time earns some more. Without the second, trials of ejected engines would use up the budget of a pool with
few requests.
"""

from typing import Final

RATIO: Final = 0.1
"""Attempts earned by each request: at most 10 % of the request rate."""
PER_S: Final = 10.0
"""Attempts earned by each second."""
BURST: Final = 200.0
"""Attempts that may be saved: the requests that one dying engine leaves behind at once."""
OPINION_RATIO: Final = 0.05
OPINIONS_PER_S: Final = 2.0
OPINIONS_BURST: Final = 20.0
"""Second opinions, in the same way: errors of clients take little of the attempts above, and an engine that alone
refuses requests is ejected after fewer."""


class RetryBudget:
    """One pool's: a token bucket that requests and time fill and further attempts empty."""

    def __init__(self, ratio: float = RATIO, per_s: float = PER_S, burst: float = BURST) -> None:
        self._ratio = ratio
        self._per_s = per_s
        self._burst = burst
        self._saved = burst
        self._spent_at: float | None = None
        self.requests = 0
        """Requests that arrived since the last attempt was asked for."""
        self.refused = 0
        """Attempts that the budget had no room for."""

    def spend(self, now: float) -> bool:
        """Whether one more attempt may be made; takes it from the budget. `now`: monotonic seconds."""
        passed_s = 0.0 if self._spent_at is None else now - self._spent_at
        self._spent_at = now
        self._saved = min(self._burst, self._saved + self._ratio * self.requests + self._per_s * passed_s)
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
        self._opinions: Final[dict[str, RetryBudget]] = {}

    def budget_of(self, pool: str) -> RetryBudget:
        """The pool's budget."""
        budget = self._of.get(pool)
        if budget is None:
            budget = self._of[pool] = RetryBudget()
        return budget

    def spend_opinion(self, pool: str, now: float) -> bool:
        """Whether one more error that is usually the client's may be asked of a second endpoint of the pool; takes it
        from the pool's second opinions. `now`: monotonic seconds."""
        budget = self._opinions.get(pool)
        if budget is None:
            budget = self._opinions[pool] = RetryBudget(OPINION_RATIO, OPINIONS_PER_S, OPINIONS_BURST)
        budget.requests += 1
        return budget.spend(now)

    @property
    def count_refused(self) -> int:
        """Attempts that no budget had room for."""
        return sum(budget.refused for budget in self._of.values())
