"""One pattern: its expression, and further conditions on a match."""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Pattern(NamedTuple):
    """RE2 syntax, case-insensitive. `valid` checks the group of that number in each match."""

    category: str
    regex: str
    valid: Callable[[str], bool] | None = None
    group: int = 0
    unless: Callable[[str, int, int], bool] | None = None
    """Whether the surroundings of the match, given by text, start and end, make it harmless."""
    within: Callable[[str, int, int], Iterable[tuple[int, int]]] | None = None
    """The exact place within a match, given by text, start and end; `None`: the whole match."""
