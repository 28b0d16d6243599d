"""A request that isn't bound to an engine yet, and how it is bound."""

from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.request import ScheduleRequest


class Because(StrEnum):
    """Why a request was bound at this moment."""

    TURN = "its turn came"
    """The engine that it is planned for takes it up next."""
    PASS = "it fills a pass"  # noqa: S105 - of an engine
    """A pass that begins with other prompts is longer for it by less than a pass of its own takes."""
    LIMIT = "its wait reached the limit"
    """Shorter requests would have gone before it otherwise."""
    FULL = "too many wait"
    """It was the oldest of more requests than may wait."""
    CLOSING = "the scheduler shuts down"
    """It goes to whatever engine is best now."""
    BLIND = "engines can't be predicted"
    """The pass model isn't trusted, or the engines of the pool changed."""


class Unbound:
    """A request that waits. Times are milliseconds of the estimator's clock."""

    __slots__ = ("asked_at", "latest", "matched", "prompt", "request", "row", "rows", "since", "uncached", "uses")

    def __init__(
        self, request: ScheduleRequest, since: float, matched: Floats, rows: list[int] | None, row: int, uses: float
    ) -> None:
        self.request: Final = request
        self.since: Final = since
        self.prompt: Final = max(1, request.prompt_tokens)
        self.matched = matched
        """Prompt tokens that each worker is believed to hold."""
        self.rows: Final = rows
        """Fleet rows that passed the filters; None for all."""
        self.row = row
        """Of the worker that it is planned for."""
        self.uses: Final = uses
        """How often its longest known prefix was asked for before."""
        self.uncached = 0.0
        """Tokens to compute on the worker that it is planned for."""
        self.latest = since
        """From then on it goes before all whose limit ends later."""

    def shares(self, other: "Unbound") -> None:
        """What both begin with will be held where `other` is planned to go."""
        mine, theirs = self.request.blocks, other.request.blocks
        length = min(len(mine), len(theirs))
        differ = np.flatnonzero(mine[:length] != theirs[:length])
        common = float((int(differ[0]) if len(differ) else length) * self.request.block_tokens)
        if common > self.matched[other.row]:
            self.matched[other.row] = common

    def least_uncached(self) -> float:
        """Tokens to compute where the longest prefix of it is held."""
        return self.on(float(self.matched.max()))

    def on(self, matched: float) -> float:
        """Tokens to compute where so many are held."""
        return max(1.0, self.prompt - matched)


class Bound(NamedTuple):
    """A request that goes to an engine now."""

    request: ScheduleRequest
    worker: str
    waited_ms: float
    because: Because


class PeerRequest(NamedTuple):
    """A request that waits at another scheduler."""

    worker: str
    uncached: float
    prompt: int
    priority: int
    latest: float
    """As `Unbound.latest`, by this scheduler's clock."""
