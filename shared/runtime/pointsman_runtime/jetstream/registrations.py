"""Which workers are registered: announcements of agents on the bus, and entries of the bucket for workers without one.

Pure. Times are seconds of a `ListeningClock`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration

Key = tuple[str, str]
"""Pool and worker."""


@dataclass(slots=True)
class _Known:
    registration: WorkerRegistration
    heard: float
    """When anything of it came last, from the bus or the bucket."""
    announced: float | None = None
    """When its agent announced it last; agents of earlier versions write to the bucket alone."""
    reported: float | None = None


class Registrations:
    """Calls `on_registered` with every new, changed or renewed registration, and `on_left` for every worker that is
    gone."""

    def __init__(
        self, on_registered: Callable[[WorkerRegistration], None], on_left: Callable[[str, str], None]
    ) -> None:
        """`on_left(pool, worker)`. An error in `on_registered` is raised to the caller, and the registration isn't
        kept."""
        self._on_registered: Final = on_registered
        self._on_left: Final = on_left
        self._known: Final[dict[Key, _Known]] = {}
        self._strangers: Final[dict[Key, float]] = {}
        """Workers that report load and aren't registered, with the time of the last report."""

    @property
    def is_empty(self) -> bool:
        """Whether no worker is registered."""
        return not self._known

    @property
    def has_strangers(self) -> bool:
        """Whether a worker reports load whose registration didn't come yet."""
        return bool(self._strangers)

    def receive_announcement(self, announcement: WorkerAnnouncement, at: float) -> None:
        """An agent announced its worker."""
        registration = announcement.registration
        key = registration.pool, registration.worker
        known = self._known.get(key)
        if announcement.leaving:
            # An agent that was replaced leaves after its successor began.
            if known is not None and known.registration.agent == registration.agent:
                self._left(key)
            return
        self._registered(key, registration, at).announced = at

    def note_entry(self, registration: WorkerRegistration, at: float) -> None:
        """The bucket has this entry. It may be old: a bucket that takes no writes neither renews nor expires."""
        key = registration.pool, registration.worker
        known = self._known.get(key)
        if known is None or not _within(known.announced, TIMES.worker_gone_s, at):
            self._registered(key, registration, at)

    def note_entry_gone(self, pool: str, worker: str, at: float) -> None:
        """The bucket lost the entry: it was removed, or not renewed in time."""
        known = self._known.get((pool, worker))
        if (
            known is None
            or _within(known.announced, TIMES.worker_gone_s, at)
            or _within(known.reported, TIMES.worker_silent_s, at)
        ):
            return
        self._left((pool, worker))

    def receive_load(self, load: WorkerLoad, at: float) -> None:
        """A worker's load came."""
        known = self._known.get((load.pool, load.worker))
        if known is not None:
            known.heard = known.reported = at
        elif load.boot_id:
            self._strangers[load.pool, load.worker] = at

    def find_departed(self, at: float) -> None:
        """Find the workers that have left."""
        for key in [key for key, known in self._known.items() if at - known.heard > TIMES.worker_gone_s]:
            self._left(key)
        for key in [key for key, heard in self._strangers.items() if at - heard > TIMES.worker_silent_s]:
            del self._strangers[key]

    def _registered(self, key: Key, registration: WorkerRegistration, at: float) -> _Known:
        self._on_registered(registration)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(registration, at)
            self._strangers.pop(key, None)
        known.registration, known.heard = registration, at
        return known

    def _left(self, key: Key) -> None:
        del self._known[key]
        self._on_left(*key)


def _within(moment: float | None, seconds: float, at: float) -> bool:
    return moment is not None and at - moment <= seconds
