"""The spending of one scope of one budget, by day (UTC), and the possible cost of its open requests."""

from datetime import date
from typing import Final

from pointsman_contracts.limits import BudgetWindow

DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()
_KEPT_DAYS: Final = 31
"""Days that are kept while no window is known."""


def day_of(unix_s: float) -> int:
    """Days since 1970-01-01 (UTC)."""
    return int(unix_s // DAY_S)


def first_day(days: int | None, today: int) -> int:
    """The first day of the window that ends with `today`."""
    if days is not None:
        return today - days + 1
    return date.fromordinal(_EPOCH + today).replace(day=1).toordinal() - _EPOCH


def next_month(today: int) -> int:
    """The first day of the next calendar month."""
    day = date.fromordinal(_EPOCH + today)
    following = (
        day.replace(year=day.year + 1, month=1, day=1) if day.month == 12 else day.replace(month=day.month + 1, day=1)
    )
    return following.toordinal() - _EPOCH


class Account:
    """Whole nano-dollars. All windows use the same days, so that a budget's period may change."""

    __slots__ = ("_sums", "days", "reserved", "told", "windows")

    def __init__(self, days: dict[int, int] | None = None, told: tuple[str, ...] = ()) -> None:
        self.days: Final = {} if days is None else dict(days)
        self.reserved = 0
        """Possible cost of open requests."""
        self.told: Final = set(told)
        """Warnings that were published."""
        self.windows: tuple[BudgetWindow, ...] = ()
        """The windows of the last request."""
        self._sums: dict[int | None, tuple[int, int]] = {}
        """Length of a window → its last day and what was spent in it."""

    def spent_in_window(self, days: int | None, today: int) -> int:
        """Spending in the window that ends with `today`."""
        known = self._sums.get(days)
        if known is not None and known[0] == today:
            return known[1]
        first = first_day(days, today)
        total = sum([spent for day, spent in self.days.items() if day >= first])
        self._sums[days] = today, total
        return total

    def add_spending(self, amount: int, day: int) -> None:
        """Add the cost of a request that ended on `day`."""
        self.days[day] = self.days.get(day, 0) + amount
        self._sums.clear()

    def reset_day(self, days: int | None, today: int, excess: int) -> int:
        """The day at whose beginning at least `excess` of the spending has left the window; if less was spent, the day
        at which all of it has."""
        if days is None:
            return next_month(today)
        gone, reset = 0, today + 1
        for day in sorted(day for day in self.days if day > today - days):
            if self.days[day]:
                gone += self.days[day]
                reset = day + days
                if gone >= excess:
                    break
        return reset

    def drop_old_days(self, today: int) -> bool:
        """Drop days outside every window; returns whether none is left."""
        longest = max((window.days or _KEPT_DAYS for window in self.windows), default=_KEPT_DAYS)
        for day in [day for day in self.days if day <= today - max(longest, _KEPT_DAYS)]:
            del self.days[day]
        return not self.days and not self.reserved
