"""The means by which a cell is tried: engines, doors before them, and what an operator and a bookkeeper see."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import aiohttp

from pointsman_testing.unruly.cells import Place
from pointsman_testing.unruly.fleet import UnrulyFleet


class Records(NamedTuple):
    """How often each request is recorded."""

    completed: Mapping[str, int]
    """In events that were stored."""
    ledger: Mapping[str, int]


class TrialGround(Protocol):
    """A gateway, or another router, before engines that misbehave."""

    http: aiohttp.ClientSession
    fleet: UnrulyFleet

    def door(self, place: Place) -> str:
        """URL that the clients of this pool use."""
        ...

    async def doctor(self) -> str | None:
        """The diagnosis that an operator gets now; None: there is none to be had."""
        ...

    async def records(self, requests: Sequence[str]) -> Records | None:
        """The records of these requests, once they are complete or late; None: none are kept."""
        ...

    def stood_still(self, since: float, until: float) -> list[str]:
        """Processes that got no CPU time for a while in this span of `time.monotonic()`."""
        ...
