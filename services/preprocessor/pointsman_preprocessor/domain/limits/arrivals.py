"""Counts requests by the generic cell rate algorithm: one number for each count, and no window that begins anew.

ITU-T I.371, annex A (virtual scheduling): a cell conforms when its theoretical arrival time is at most the tolerance
away. Here the tolerance is what a burst of so many requests takes at the given rate.
"""

from math import inf

from pointsman_contracts.limits import LimitWindow


class Arrivals:
    """The requests of one scope."""

    __slots__ = ("due",)

    def __init__(self, due: float = 0.0) -> None:
        self.due = due
        """When the next request is due if all kept to the rate, unix seconds."""

    def wait(self, window: LimitWindow, cost: float, now: float) -> float:
        """Seconds until `cost` more would be admitted; 0 now, infinite never."""
        if window.amount <= 0 or cost > window.burst:
            return inf
        each = window.period_s / window.amount
        return max(0.0, max(self.due, now) + cost * each - window.burst * each - now)

    def add(self, window: LimitWindow, cost: float, now: float) -> None:
        """Count them."""
        self.due = max(self.due, now) + cost * window.period_s / window.amount

    def take_back(self, period_s: float, amount: float, cost: float) -> None:
        """They never came. Only for what was added a moment ago."""
        self.due -= cost * period_s / amount

    def remaining(self, window: LimitWindow, now: float) -> float:
        """How many more would be admitted at once."""
        if window.amount <= 0:
            return 0.0
        return max(0.0, window.burst - max(0.0, self.due - now) * window.amount / window.period_s)

    def reset_s(self, now: float) -> float:
        """Seconds until a whole burst would be admitted."""
        return max(0.0, self.due - now)
