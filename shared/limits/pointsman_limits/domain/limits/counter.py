"""One count of a book: of requests by their arrivals, of tokens in a window, or of open requests."""

from abc import ABC, abstractmethod
from functools import lru_cache
from math import inf

from pointsman_contracts.limits import CounterState, LimitWindow, WindowStanding
from pointsman_limits.domain.limits.usage_window import UsageWindow


@lru_cache(maxsize=1024)
def window_name(unit: str, period_s: float, measure: str) -> str:
    """The name of a window's count. It lacks the amount: counts survive its change."""
    return f"{unit}/{period_s:g}" + (f"/{measure}" if measure else "")


def counter_of(window: str) -> "UseCounter":
    """A count at zero. `window` as `window_name`."""
    unit, period, *_ = window.split("/")
    if unit == "requests":
        return Arrivals()
    return TokenCounter(float(period)) if unit == "tokens" else OpenCounter()


class UseCounter(ABC):
    """The count of one window in one scope."""

    __slots__ = ("_risk",)

    def __init__(self) -> None:
        self._risk: float = 0.0
        """Tokens that open requests may use beyond their reservations."""

    @property
    def is_idle(self) -> bool:
        """Whether no open request may use more than is counted."""
        return self._risk <= 0

    @abstractmethod
    def seconds_until_room(
        self, window: LimitWindow, cost: float, now: float, reactive: bool = False, risk: float = 0.0
    ) -> float:
        """Seconds until a request of `cost` that may cost `risk` more is admitted; 0 now, infinite never or unknown.
        A window of 0 blocks even a request without cost."""

    @abstractmethod
    def add_cost(self, window: LimitWindow, cost: float, now: float, risk: float = 0.0) -> None:
        """Count a request that was admitted."""

    @abstractmethod
    def compute_standing(self, window: LimitWindow, now: float) -> WindowStanding:
        """The remaining amount."""

    @abstractmethod
    def used_now(self, now: float) -> float:
        """The count: tokens in the window, open requests, or seconds until no request is due."""

    def end_request(self, cost: float, risk: float = 0.0) -> None:
        """An open request has ended."""
        del cost
        if risk:
            self._risk = max(0.0, self._risk - risk)

    def correct_cost(self, cost: float, actual: float, at: float, now: float) -> None:
        """Correct an amount that was counted as `cost` at the time `at`: it was `actual`."""
        del cost, actual, at, now

    def take_back(self, cost: float, at: float, now: float) -> None:
        """Undo a request that was counted at `at`."""
        del cost, at, now

    def reopen_request(self, cost: float, risk: float) -> None:
        """Reopen a request that another keeper counted, and whose tokens or arrival `take_over` brought."""
        del cost
        self._risk += risk

    def build_state(self, limit: str, scope: str, window: str) -> CounterState:
        """The state for the snapshot. Open requests follow from the charges."""
        return CounterState(window=window, limit=limit, scope=scope)

    def take_over(self, state: CounterState, at: float, unknown_s: float, ahead_s: float) -> None:
        """Take over another keeper's state of the time `at`, by a clock that was `ahead_s` ahead. The last `unknown_s`
        seconds are unknown: requests are assumed to have arrived at the limit's rate, if any did before. So no limit is
        used twice because a keeper dies."""
        del state, at, unknown_s, ahead_s


class TokenCounter(UseCounter):
    """Tokens in a window."""

    __slots__ = ("_period_s", "_usage")

    def __init__(self, period_s: float) -> None:
        super().__init__()
        self._period_s = period_s
        self._usage = UsageWindow(period_s)

    def seconds_until_room(
        self, window: LimitWindow, cost: float, now: float, reactive: bool = False, risk: float = 0.0
    ) -> float:
        amount, usage = window.amount, self._usage
        if amount <= 0:
            return inf
        if reactive:
            # While any amount is left, a request may use any amount.
            cost = 1.0
        wait_s = 0.0 if usage.used_now(now) + cost <= amount else usage.seconds_until_room(amount, cost, now)
        # Running requests may exceed their reservations by the amount once more, and no more.
        return inf if risk > 0 < self._risk and self._risk + risk > amount and not wait_s else wait_s

    def add_cost(self, window: LimitWindow, cost: float, now: float, risk: float = 0.0) -> None:
        del window
        self._risk += risk
        self._usage.add_usage(cost, now)

    def correct_cost(self, cost: float, actual: float, at: float, now: float) -> None:
        if actual < cost:
            self._usage.subtract_usage(cost - actual, at, now)
        elif actual > cost:
            self._usage.add_usage(actual - cost, now)

    def take_back(self, cost: float, at: float, now: float) -> None:
        self._usage.subtract_usage(cost, at, now)

    def compute_standing(self, window: LimitWindow, now: float) -> WindowStanding:
        used, reset_s = self._usage.used_and_wait(now)
        return WindowStanding(remaining=max(0.0, window.amount - used), reset_s=reset_s)

    def used_now(self, now: float) -> float:
        return self._usage.used_now(now)

    def build_state(self, limit: str, scope: str, window: str) -> CounterState:
        first, slots = self._usage.export_slots
        return CounterState(window=window, limit=limit, scope=scope, first_slot=first, slots=slots)

    def take_over(self, state: CounterState, at: float, unknown_s: float, ahead_s: float) -> None:
        del at, unknown_s
        first = state.first_slot - round(ahead_s / self._usage.width)
        self._usage = UsageWindow(self._period_s, first, state.slots)


class OpenCounter(UseCounter):
    """Open requests."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        super().__init__()
        self._open = 0.0

    def seconds_until_room(
        self, window: LimitWindow, cost: float, now: float, reactive: bool = False, risk: float = 0.0
    ) -> float:
        del now, reactive, risk
        return 0.0 if window.amount > 0 and self._open + cost <= window.amount else inf

    def add_cost(self, window: LimitWindow, cost: float, now: float, risk: float = 0.0) -> None:
        del window, now
        self._risk += risk
        self._open += cost

    def end_request(self, cost: float, risk: float = 0.0) -> None:
        super().end_request(cost, risk)
        self._open = max(0.0, self._open - cost)

    def compute_standing(self, window: LimitWindow, now: float) -> WindowStanding:
        del now
        return WindowStanding(remaining=max(0.0, window.amount - self._open), reset_s=0.0)

    def reopen_request(self, cost: float, risk: float) -> None:
        super().reopen_request(cost, risk)
        self._open += cost

    def used_now(self, now: float) -> float:
        del now
        return self._open


class Arrivals(UseCounter):
    """Requests by the generic cell rate algorithm: one number for each count, and no window that restarts.

    ITU-T I.371, annex A (virtual scheduling): a cell conforms when its theoretical arrival time is at most the
    tolerance away. Here the tolerance is what a burst of so many requests takes at the given rate.
    """

    __slots__ = ("_due", "_each_s")

    def __init__(self) -> None:
        super().__init__()
        self._due = 0.0
        """When the next request is due if all kept to the rate, unix seconds."""
        self._each_s: float | None = None
        """Seconds between two requests, at the rate by which `_due` was counted."""

    def seconds_until_room(
        self, window: LimitWindow, cost: float, now: float, reactive: bool = False, risk: float = 0.0
    ) -> float:
        del reactive, risk
        if window.amount <= 0 or cost > window.burst:
            return inf
        each_s = self._keep_to(window, now)
        return max(0.0, max(self._due, now) + cost * each_s - window.burst * each_s - now)

    def add_cost(self, window: LimitWindow, cost: float, now: float, risk: float = 0.0) -> None:
        self._risk += risk
        each_s = self._keep_to(window, now)
        self._due = max(self._due, now) + cost * each_s

    def take_back(self, cost: float, at: float, now: float) -> None:
        """Only for requests that were added a moment ago."""
        del at, now
        self._due -= cost * (self._each_s or 0.0)

    def compute_standing(self, window: LimitWindow, now: float) -> WindowStanding:
        """Requests that would be admitted at once, and the seconds until a whole burst would be."""
        reset_s = max(0.0, self._due - now)
        left = window.burst - reset_s * window.amount / window.period_s if window.amount > 0 else 0.0
        return WindowStanding(remaining=max(0.0, left), reset_s=reset_s)

    def used_now(self, now: float) -> float:
        return max(0.0, self._due - now)

    def build_state(self, limit: str, scope: str, window: str) -> CounterState:
        return CounterState(window=window, limit=limit, scope=scope, due=self._due, each_s=self._each_s)

    def take_over(self, state: CounterState, at: float, unknown_s: float, ahead_s: float) -> None:
        due = state.due or 0.0
        self._due = (due + unknown_s if due > at else due) - ahead_s
        self._each_s = state.each_s

    def _keep_to(self, window: LimitWindow, now: float) -> float:
        """Seconds between two requests at this rate. Requests counted at another rate stay the same number: a client at
        the old limit doesn't wait as long after the rate was raised."""
        each_s = window.period_s / window.amount
        if self._each_s != each_s:
            if self._each_s is not None and self._due > now:
                self._due = now + (self._due - now) * each_s / self._each_s
            self._each_s = each_s
        return each_s
