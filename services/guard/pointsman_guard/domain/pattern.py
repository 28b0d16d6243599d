"""One pattern: what it finds, and what a match must be besides."""

from collections.abc import Callable
from typing import NamedTuple


class Pattern(NamedTuple):
    """RE2 syntax, case-insensitive. Matches are checked by `valid`, which gets the group of that number."""

    category: str
    regex: str
    valid: Callable[[str], bool] | None = None
    group: int = 0
