"""Distinguishes the lives of an engine: a restart empties its memory."""

import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

from pointsman_engines.reading import EngineIdentity

STARTS_KEPT: Final = 16
"""Start times of former lives that are remembered."""
SHARED_AFTER: Final = 3
"""Lives that begin without a refused connection, within `SHARED_WITHIN_S`, before the URL counts as shared: an engine
needs longer to load its weights, and its port is closed meanwhile."""
SHARED_WITHIN_S: Final = 60.0
SHARED_KEPT_S: Final = 600.0
"""A URL that led to one process for this long isn't shared any more."""


def _random_id() -> str:
    return secrets.token_hex(6)


class EngineLife:
    """The `boot_id` of one engine. Times are of any monotonic clock.

    An engine that says when it started gets an id made of that, so that every observer, and an agent that was
    itself restarted, names the same life alike. For any other engine, a new life is known by a connection
    that was refused in between (no process listened), or by a counter that went back.

    A URL that leads to several processes by turns (a balancer) would begin a life with each page. It is known by a
    start time that comes back, or by lives that begin faster than an engine can start; the id stays then.
    """

    def __init__(self, new_id: Callable[[], str] = _random_id) -> None:
        self.boot_id = ""
        """Empty until the engine answered for the first time."""
        self.shared = ""
        """Evidence that the URL leads to several processes, in words; empty while there is none."""
        self._new_id: Final = new_id
        self._started_at: float | None = None
        self._progress: float | None = None
        self._refused = False
        self._former_starts: Final = deque[float](maxlen=STARTS_KEPT)
        self._begun: Final = deque[float](maxlen=SHARED_AFTER)
        """Times at which a life began although no connection was refused."""
        self._turned_at = 0.0
        """When another process than before answered last, at a shared URL."""

    def note_refused(self) -> None:
        """The connection was refused."""
        self._refused = True

    def note_answer(self, who: EngineIdentity, now: float) -> bool:
        """The engine answered; returns whether a life began."""
        if not self.boot_id:
            began = True
        elif self._is_another(who):
            began = self._refused or not self._found_shared(who, now)
        else:
            began = self._refused and who.started_at is None
            if self.shared and now - self._turned_at > SHARED_KEPT_S:
                self.shared = ""
        if began:
            self.boot_id = self._new_id() if who.started_at is None else f"{int(who.started_at * 1000):x}"
            if self._started_at is not None:
                self._former_starts.append(self._started_at)
            self._started_at = self._progress = None
        self._started_at = self._started_at if who.started_at is None else who.started_at
        self._progress = self._progress if who.progress is None else who.progress
        self._refused = False
        return began

    def _is_another(self, who: EngineIdentity) -> bool:
        """Whether this is another process than the one that answered before."""
        if who.started_at is not None and self._started_at is not None:
            return who.started_at != self._started_at
        return who.progress is not None and self._progress is not None and who.progress < self._progress

    def _found_shared(self, who: EngineIdentity, now: float) -> bool:
        if not self.shared:
            self._begun.append(now)
            if who.started_at is not None and who.started_at in self._former_starts:
                self.shared = f"start times {self._started_at:.0f} and {who.started_at:.0f} answer by turns"
            elif len(self._begun) == SHARED_AFTER and now - self._begun[0] <= SHARED_WITHIN_S:
                within = f"{now - self._begun[0]:.0f} s"
                self.shared = f"{SHARED_AFTER} processes began within {within}, and none of them closed the port"
        self._turned_at = now
        return bool(self.shared)
