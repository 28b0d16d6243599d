"""One pattern: what it finds, and what a match must be besides."""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Pattern(NamedTuple):
    """RE2 syntax, case-insensitive. Matches are checked by `valid`, which gets the group of that number."""

    category: str
    regex: str
    valid: Callable[[str], bool] | None = None
    group: int = 0
    unless: Callable[[str, int, int], bool] | None = None
    """Whether what stands around the match, in this text from here to there, makes it harmless."""
    within: Callable[[str, int, int], Iterable[tuple[int, int]]] | None = None
    """Where in a match, which lies from here to there in this text, it really is; `None`: the match is it."""
