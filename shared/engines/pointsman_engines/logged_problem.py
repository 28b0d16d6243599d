"""Bounds how often problems of engines are logged. Pure."""

import math
from typing import Final

WARNED_EVERY_S: Final = 60.0
"""An engine whose state flaps is warned of this often at most: there may be a thousand of them."""


class LoggedProblem:
    """The last problem logged about one subject. A problem that is held back is logged later, if it lasts. `well`: no
    problem is what is expected, and no news at first."""

    def __init__(self, *, well: bool = False) -> None:
        self._last: str | None = "" if well else None
        self._warned_at = -math.inf

    def is_news(self, problem: str, now: float) -> bool:
        """Whether to log this state now, which then counts as logged; an empty `problem` means none. `now` is
        monotonic."""
        if problem == self._last or (problem and now - self._warned_at < WARNED_EVERY_S):
            return False
        if problem:
            self._warned_at = now
        self._last = problem
        return True
