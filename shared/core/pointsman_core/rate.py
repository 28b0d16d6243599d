"""Amounts per time, as configured: `50/s`, `200000/min`, `2M/d`, `100/10s`."""

import re
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, cast

from pydantic import BeforeValidator, WithJsonSchema

_PERIODS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MULTIPLES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMG]?)\s*/\s*([0-9]*)\s*([a-z]+)")


class Rate(NamedTuple):
    """An amount in a number of seconds."""

    amount: float
    period_s: float

    def __str__(self) -> str:
        unit, length = next((u, s) for u, s in reversed(_PERIODS.items()) if self.period_s >= s)
        times = self.period_s / length
        return f"{self.amount:.15g}/{'' if times == 1 else f'{times:g}'}{unit}"


def rate(text: object) -> Rate:
    """Parse one rate. Raises ValueError for an invalid one."""
    if isinstance(text, Rate):
        return text
    found = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[4] not in _PERIODS or found[3].startswith("0"):
        known = ", ".join(f"/{period}" for period in _PERIODS)
        raise ValueError(f"{text!r} is not a rate; write an amount and one of {known}, e.g. 50/s or 200k/min")
    return Rate(float(found[1]) * _MULTIPLES[found[2]], int(found[3] or 1) * _PERIODS[found[4]])


def rates(value: object) -> tuple[Rate, ...]:
    """One, or several of different periods that all count, in a list or with commas between them. Raises ValueError."""
    listed: Sequence[object] = value.split(",") if isinstance(value, str) else (value,)
    if isinstance(value, list | tuple) and not isinstance(value, Rate):
        listed = cast("Sequence[object]", value)
    found = tuple([rate(each) for each in listed])
    if not found:
        raise ValueError("at least one rate is needed, e.g. 50/s")
    periods = [each.period_s for each in found]
    if len(set(periods)) < len(periods):
        raise ValueError("two rates have the same period, so only the lower one would count; leave one out")
    return found


_TEXT: Final = {"type": "string", "examples": ["50/s", "200k/min", "2M/d"]}
Rates = Annotated[
    tuple[Rate, ...],
    BeforeValidator(rates),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}),
]
"""Parameter of a limit."""
