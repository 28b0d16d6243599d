"""Distinguishes the lives of an engine: a restart empties its memory."""

import secrets
from collections.abc import Callable


def _random_id() -> str:
    return secrets.token_hex(6)


class EngineLife:
    """The `boot_id` of one engine.

    An engine that says when it started gets an id made of that, so that every observer, and an agent that was
    itself restarted, names the same life alike. For any other engine, a new life is known by a connection
    that was refused in between (no process listened), or by a counter that went back.
    """

    def __init__(self, new_id: Callable[[], str] = _random_id) -> None:
        self.boot_id = ""
        """Empty until the engine answered for the first time."""
        self._new_id = new_id
        self._started_at: float | None = None
        self._progress: float | None = None
        self._refused = False

    def refused(self) -> None:
        """The connection was refused."""
        self._refused = True

    def answered(self, started_at: float | None, progress: float | None) -> bool:
        """The engine answered with this start (unix seconds) and this counter; returns whether a life began."""
        if not self.boot_id:
            began = True
        elif started_at is not None and self._started_at is not None:
            began = started_at != self._started_at
        else:
            went_back = progress is not None and self._progress is not None and progress < self._progress
            began = self._refused or went_back
        if began:
            self.boot_id = self._new_id() if started_at is None else f"{int(started_at * 1000):x}"
            self._started_at = self._progress = None
        self._started_at = self._started_at if started_at is None else started_at
        self._progress = self._progress if progress is None else progress
        self._refused = False
        return began
