"""Money: whole nano-dollars (a billionth of a dollar) on the wire, decimals for people; never binary floats."""

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Final

NANOS: Final = 1_000_000_000
"""Nano-dollars in a dollar."""
_STEP: Final = Decimal(1).scaleb(-9)


def nanos(dollars: Decimal | str | float) -> int:
    """Nano-dollars of an amount in dollars, rounded half to even; a float counts as it is printed. Raises ValueError
    on what is no finite number."""
    try:
        amount = Decimal(str(dollars)).quantize(_STEP, ROUND_HALF_EVEN)
        if amount.is_finite():
            return int(amount * NANOS)
    except InvalidOperation:
        pass  # no number, or too large a one
    raise ValueError(f"{dollars!r} is not an amount of money; write dollars, e.g. 12.50")


def dollars(amount: int, places: int = 9) -> str:
    """Plain decimal notation, at least two decimals and at most `places`, e.g. `12.50`, `0.000004`."""
    step = 10 ** (9 - places)
    rounded = (abs(amount) + step // 2) // step * step
    whole, rest = divmod(rounded, NANOS)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 and rounded else ''}{whole}.{decimals}"
