"""Quantities as people write them in configuration."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

_DURATION: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


_WRITTEN: Final = ContextVar("written", default=False)


@contextmanager
def written() -> Generator[None]:
    """Validation inside the `with` treats values as written by a person: a duration other than 0 needs a unit. Stored
    configurations and code may have plain seconds."""
    token = _WRITTEN.set(True)
    try:
        yield
    finally:
        _WRITTEN.reset(token)


def seconds(value: object) -> object:
    """`250ms`, `1.5s`, `2m` or `2min`, `1h`, `1d`, or a number of seconds. Raises ValueError on other text, and on a
    number inside `written`."""
    if not isinstance(value, str):
        if value and isinstance(value, int | float) and not isinstance(value, bool) and _WRITTEN.get():
            raise ValueError(f"{value} has no unit; write one of {', '.join(_DURATION)} behind it, e.g. {value}s")
        return value
    match = _QUANTITY.fullmatch(value)
    if match is None or match[2] not in _DURATION:
        raise ValueError(f"{value!r} is not a duration; write a number and one of {', '.join(_DURATION)}, e.g. 250ms")
    return float(match[1]) * _DURATION[match[2]]


def size(value: object) -> object:
    """`8MiB`, `64 KB`, or a number of bytes. Raises ValueError on other text."""
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    if match is None or match[2].lower() not in _SIZE:
        raise ValueError(f"{value!r} is not a size; write a number and one of B, KB, MB, GB, KiB, MiB, GiB, e.g. 8MiB")
    return int(float(match[1]) * _SIZE[match[2].lower()])


Duration = Annotated[float, BeforeValidator(seconds), Field(ge=0, allow_inf_nan=False)]
"""Seconds."""
PositiveDuration = Annotated[float, BeforeValidator(seconds), Field(gt=0, allow_inf_nan=False)]
"""Seconds, above 0."""
ByteSize = Annotated[int, BeforeValidator(size), Field(ge=0)]
"""Bytes."""
PositiveSize = Annotated[int, BeforeValidator(size), Field(gt=0)]
"""Bytes, above 0."""
