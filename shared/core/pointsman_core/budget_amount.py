"""Amounts of money per period, as configured: `50/month`, `2.50/d`, `100/7d`."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Final, NamedTuple, cast

from pydantic import BeforeValidator, WithJsonSchema

from pointsman_contracts.limits import BudgetWindow
from pointsman_contracts.money import nanos

LONGEST_DAYS: Final = 366
"""Most days of a period: spending is kept for this long."""
_AMOUNT: Final = re.compile(r"\$?\s*([0-9]+(?:\.[0-9]{1,9})?)\s*/\s*(?:([1-9][0-9]*)?\s*(d|day|days)|(month))")
_SHARE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


class Amount(NamedTuple):
    """An amount of money per period."""

    nanos: int
    days: int | None
    """Number of days, today included; None: the calendar month."""

    @property
    def period_name(self) -> str:
        """`d`, `7d`, `month`."""
        return period(self.days)


def period(days: int | None) -> str:
    """`d`, `7d`, `month`."""
    return "month" if days is None else "d" if days == 1 else f"{days}d"


def amount(text: object) -> Amount:
    """Parse one amount. Raises ValueError for an invalid one."""
    if isinstance(text, Amount):
        return text
    found = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
    days = None if found is None or found[4] else int(found[2] or 1)
    if found is None or (days or 0) > LONGEST_DAYS:
        raise ValueError(
            f"{text!r} is not a budget; write dollars and a period of days (at most {LONGEST_DAYS}) or a calendar "
            "month, e.g. 20/d, 100/7d, 50/month"
        )
    return Amount(nanos(found[1]), days)


def amounts(value: object) -> tuple[Amount, ...]:
    """One, or several of different periods that all count. Raises ValueError."""
    listed: Sequence[object] = (value,)
    if isinstance(value, list | tuple) and not isinstance(value, Amount):
        listed = cast("Sequence[object]", value)
    found = tuple([amount(each) for each in listed])
    if not found:
        raise ValueError("at least one amount is needed, e.g. 50/month")
    if len({each.days for each in found}) < len(found):
        raise ValueError("two amounts have the same period, so only the lower one would count; leave one out")
    return found


def share(value: object) -> object:
    """`80%` or `0.8` as a decimal. Raises ValueError."""
    if not isinstance(value, str):
        return value
    found = _SHARE.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{value!r} is not a share; write a percentage, e.g. 80%")
    return Decimal(found[1]) / 100


def windows(found: Sequence[Amount], soft: Decimal | None, *, hard: bool) -> tuple[BudgetWindow, ...]:
    """The windows of these amounts; `soft` is the share from which on a warning is given."""
    return tuple(
        BudgetWindow(
            amount=each.nanos, days=each.days, soft=None if soft is None else int(each.nanos * soft), hard=hard
        )
        for each in found
    )


_TEXT: Final = {"type": "string", "examples": ["50/month", "20/d", "100/7d"]}
Amounts = Annotated[
    tuple[Amount, ...],
    BeforeValidator(amounts),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}),
]
"""Type of a budget's parameter."""
