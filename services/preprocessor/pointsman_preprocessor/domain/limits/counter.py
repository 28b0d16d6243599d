"""One count of a book, in any unit."""

from functools import lru_cache
from math import inf
from typing import Final

from pointsman_contracts.limits import CounterState, LimitWindow, WindowStanding
from pointsman_preprocessor.domain.limits.arrivals import Arrivals
from pointsman_preprocessor.domain.limits.usage_window import UsageWindow


@lru_cache(maxsize=1024)
def window_name(unit: str, period_s: float, measure: str) -> str:
    """The name of a window's count. It lacks the amount: counts survive its change."""
    return f"{unit}/{period_s:g}" + (f"/{measure}" if measure else "")


class UseCounter:
    """Requests by their arrivals, tokens in a window, or open requests."""

    __slots__ = ("_arrivals", "_open", "_risk", "_usage", "period_s")

    def __init__(self, window: str) -> None:
        """`window` as `window_name`."""
        unit, period, *_ = window.split("/")
        self.period_s: Final = float(period)
        self._arrivals = Arrivals() if unit == "requests" else None
        self._usage = UsageWindow(self.period_s) if unit == "tokens" else None
        self._open = 0.0
        self._risk = 0.0
        """Tokens that open requests may use beyond their reservations."""

    def wait(self, window: LimitWindow, cost: float, now: float, reactive: bool = False, risk: float = 0.0) -> float:
        """Seconds until a request of `cost` that may cost `risk` more is admitted; 0 now, infinite never or unknown."""
        if window.amount <= 0:
            # Even a request without cost: a quota of 0 blocks a client.
            return inf
        if self._usage is not None:
            # Reactive: while any amount is left, a request may use any amount.
            wait_s = self._usage.wait(window.amount, 1.0 if reactive else cost, now)
            # Running requests may exceed their reservations by the amount once more, and no more.
            return inf if not wait_s and risk > 0 < self._risk and self._risk + risk > window.amount else wait_s
        if self._arrivals is not None:
            return self._arrivals.wait(window, cost, now)
        return 0.0 if self._open + cost <= window.amount else inf

    def add(self, window: LimitWindow, cost: float, now: float, risk: float = 0.0) -> None:
        """Count a request that was admitted."""
        self._risk += risk
        if self._usage is not None:
            self._usage.add(cost, now)
        elif self._arrivals is not None:
            self._arrivals.add(window, cost, now)
        else:
            self._open += cost

    def settle(self, cost: float, actual: float, at: float, now: float) -> None:
        """Correct an amount that was counted as `cost` at the time `at`: it was `actual`."""
        if self._usage is None:
            return
        if actual < cost:
            self._usage.correct(cost - actual, at, now)
        elif actual > cost:
            self._usage.add(actual - cost, now)

    def end(self, cost: float, risk: float = 0.0) -> None:
        """An open request has ended."""
        self._risk = max(0.0, self._risk - risk)
        if self._usage is None and self._arrivals is None:
            self._open = max(0.0, self._open - cost)

    def take_back(self, cost: float, at: float, now: float) -> None:
        """Undo a request that was counted at `at`."""
        if self._usage is not None:
            self._usage.correct(cost, at, now)
        elif self._arrivals is not None:
            self._arrivals.take_back(cost)

    def standing(self, window: LimitWindow, now: float) -> WindowStanding:
        """The remaining amount."""
        if self._usage is not None:
            left, reset_s = window.amount - self._usage.used(now), self._usage.reset_s(now)
        elif self._arrivals is not None:
            left, reset_s = self._arrivals.remaining(window, now), self._arrivals.reset_s(now)
        else:
            left, reset_s = window.amount - self._open, 0.0
        return WindowStanding(remaining=max(0.0, left), reset_s=reset_s)

    def reopen(self, cost: float, risk: float) -> None:
        """Reopen a request that another keeper counted, and whose tokens or arrival `take_over` brought."""
        self._risk += risk
        if self._usage is None and self._arrivals is None:
            self._open += cost

    @property
    def idle(self) -> bool:
        """Whether no open request may use more than is counted."""
        return self._risk <= 0

    def used(self, now: float) -> float:
        """The count: tokens in the window, open requests, or seconds until no request is due."""
        if self._usage is not None:
            return self._usage.used(now)
        return self._arrivals.reset_s(now) if self._arrivals is not None else self._open

    def state(self, limit: str, scope: str, window: str) -> CounterState:
        """The state for the snapshot. Open requests follow from the charges."""
        if self._usage is not None:
            first, slots = self._usage.state
            return CounterState(window=window, limit=limit, scope=scope, first_slot=first, slots=slots)
        if self._arrivals is None:
            return CounterState(window=window, limit=limit, scope=scope)
        return CounterState(
            window=window, limit=limit, scope=scope, due=self._arrivals.due, each_s=self._arrivals.each_s
        )

    def take_over(self, state: CounterState, at: float, unknown_s: float, ahead_s: float) -> None:
        """Take over another keeper's state of the time `at`, by a clock that was `ahead_s` ahead. The last `unknown_s`
        seconds are unknown: requests are assumed to have arrived at the limit's rate, if any did before. So no limit is
        used twice because a keeper dies."""
        if self._usage is not None:
            first = state.first_slot - round(ahead_s / self._usage.width)
            self._usage = UsageWindow(self.period_s, first, state.slots)
        elif self._arrivals is not None:
            due = state.due or 0.0
            self._arrivals = Arrivals((due + unknown_s if due > at else due) - ahead_s, state.each_s)
