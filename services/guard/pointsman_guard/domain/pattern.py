"""One pattern: what it finds, and what a match must be besides."""

from collections.abc import Callable
from typing import NamedTuple


class Pattern(NamedTuple):
    """RE2 syntax, case-insensitive. Matches are checked by `valid`, which gets the group of that number."""

    category: str
    regex: str
    valid: Callable[[str], bool] | None = None
    group: int = 0
    unless: Callable[[str, int, int], bool] | None = None
    """Whether what stands around the match, in this text from here to there, makes it harmless."""
