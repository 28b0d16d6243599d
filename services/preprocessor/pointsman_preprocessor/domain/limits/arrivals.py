"""Counts requests by the generic cell rate algorithm: one number for each count, and no window that restarts.

ITU-T I.371, annex A (virtual scheduling): a cell conforms when its theoretical arrival time is at most the tolerance
away. Here the tolerance is what a burst of so many requests takes at the given rate.
"""

from math import inf

from pointsman_contracts.limits import LimitWindow


class Arrivals:
    """The requests of one scope."""

    __slots__ = ("due", "each_s")

    def __init__(self, due: float = 0.0, each_s: float | None = None) -> None:
        self.due = due
        """When the next request is due if all kept to the rate, unix seconds."""
        self.each_s = each_s
        """Seconds between two requests, at the rate by which `due` was counted."""

    def wait(self, window: LimitWindow, cost: float, now: float) -> float:
        """Seconds until `cost` more would be admitted; 0 now, infinite never."""
        if window.amount <= 0 or cost > window.burst:
            return inf
        each_s = self._keep_to(window, now)
        return max(0.0, max(self.due, now) + cost * each_s - window.burst * each_s - now)

    def add(self, window: LimitWindow, cost: float, now: float) -> None:
        """Count them."""
        each_s = self._keep_to(window, now)
        self.due = max(self.due, now) + cost * each_s

    def take_back(self, cost: float) -> None:
        """Undo `add`. Only for requests that were added a moment ago."""
        self.due -= cost * (self.each_s or 0.0)

    def remaining(self, window: LimitWindow, now: float) -> float:
        """Requests that would be admitted at once."""
        if window.amount <= 0:
            return 0.0
        return max(0.0, window.burst - max(0.0, self.due - now) * window.amount / window.period_s)

    def reset_s(self, now: float) -> float:
        """Seconds until a whole burst would be admitted."""
        return max(0.0, self.due - now)

    def _keep_to(self, window: LimitWindow, now: float) -> float:
        """Seconds between two requests at this rate. Requests counted at another rate stay the same number: a client at
        the old limit doesn't wait as long after the rate was raised."""
        each_s = window.period_s / window.amount
        if self.each_s is not None and self.each_s != each_s and self.due > now:
            self.due = now + (self.due - now) * each_s / self.each_s
        self.each_s = each_s
        return each_s
