"""Requests that an edge holds because a stage on their way has no live replica, until it has one again.

One timer for all of them, and only while any are held: a stage that comes back gets them in order and a few at a time,
as one that has just started can't take in at once what came in seconds.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

LOOK_S: Final = 0.02
"""How often it looks whether a missing stage is back."""
PACE: Final = 32
"""Requests for one stage that go on at one look."""
AT_LEAST_S: Final = 0.1
"""Each request is held for at least this long: the process that lacks the stage may learn of its return later than
this one."""
MOST: Final = 4096
"""Requests held at a time."""
MOST_BYTES: Final = 256 * 2**20
"""Their bodies."""


class MissingStage(NamedTuple):
    """A stage, and the route token where it has one, e.g. the pool of a scheduler."""

    service: str
    route: str | None = None


class Held(Protocol):
    """One request that can be held."""

    @property
    def size(self) -> int:
        """Bytes of its body."""
        ...

    def go_on(self, now: float) -> None:
        """Send it again; the stage that it was held for is back."""
        ...


class HeldRequests:
    """Holds requests by the stage that they wait for."""

    def __init__(self, is_back: Callable[[MissingStage, float], bool]) -> None:
        self._is_back: Final = is_back
        self._waiting: Final[dict[MissingStage, dict[Held, float]]] = {}
        """With the time from which each may go on."""
        self._places: Final[dict[Held, MissingStage]] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._missing: Final = Missing(Log("held-requests"))
        self.total = 0
        """Requests that were held so far; one that is held twice counts twice."""

    def __len__(self) -> int:
        return len(self._places)

    def hold(self, request: Held, place: MissingStage, now: float) -> bool:
        """Keep a request until `place` is back; False when no more can be held."""
        if len(self._places) >= MOST or self._bytes + request.size > MOST_BYTES:
            return False
        self._places[request] = place
        self._waiting.setdefault(place, {})[request] = now + AT_LEAST_S
        self._bytes += request.size
        self.total += 1
        self._missing.note_missing(place.service, "no live replica; requests are held until one is live")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return True

    def let_go(self, request: Held) -> None:
        """A request has ended; does nothing when it isn't held."""
        place = self._places.pop(request, None)
        if place is None:
            return
        self._bytes -= request.size
        waiting = self._waiting[place]
        del waiting[request]
        if not waiting:
            del self._waiting[place]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for place in list(self._waiting):
            if self._is_back(place, now):
                self._missing.note_recovery(place.service)
                self._release(place, now)
        self._timer = loop.call_later(LOOK_S, self._look) if self._places else None

    def _release(self, place: MissingStage, now: float) -> None:
        due: list[Held] = []
        for request, since in self._waiting[place].items():
            if since > now or len(due) == PACE:
                break
            due.append(request)
        for request in due:
            self.let_go(request)
            request.go_on(now)
