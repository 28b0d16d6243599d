"""When an edge begins requests with a new configuration revision."""

from typing import Final, Generic, TypeVar

from pointsman_hosting.configuration import Configuration, Revision
from pointsman_journey.presence import PresenceTable
from pointsman_runtime.telling.logs import Log

PATIENCE_S: Final = 0.7
"""Longer than three beats; what waits no longer than this, and for the edge's next tick, swaps within a second."""

C = TypeVar("C")

_log = Log("rollout")


class Rollout(Generic[C]):
    """The revision that an edge gives to new requests: the newest one that every stage runs.

    Processes learn of a revision milliseconds apart. A request that had one which its next stage doesn't know yet
    would meet profiles without their selectors. A stage that never takes the revision over doesn't hold it up: after
    `PATIENCE_S` the edge goes ahead.
    """

    def __init__(self, configuration: Configuration[C], table: PresenceTable) -> None:
        self._configuration = configuration
        self._table = table
        self._current: Revision[C] | None = None
        self._waiting_for = 0
        self._waiting_since = 0.0

    @property
    def current(self) -> Revision[C]:
        """The revision of requests that begin now. Raises LookupError before the first one is loaded."""
        return self._current or self._configuration.current

    def compile_current(self) -> C:
        """The compiled form of `current`."""
        return (self._current or self._configuration.current).compiled

    def advance_revision(self, now: float) -> None:
        """Look whether a newer revision can be used; called about every 100 ms with the loop's time."""
        if self._configuration.missing is not None:
            return
        newest = self._configuration.current
        if self._current is newest:
            return
        if self._current is None:
            self._current = newest
            return
        if self._waiting_for != newest.number:
            self._waiting_for, self._waiting_since = newest.number, now
        complete = self._table.all_run(newest.number, now)
        if complete or now - self._waiting_since >= PATIENCE_S:
            if not complete:
                _log.warning(
                    "revision_incomplete",
                    revision=newest.number,
                    hint="`pointsman config status` lists the replicas that don't run it",
                )
            self._current = newest
