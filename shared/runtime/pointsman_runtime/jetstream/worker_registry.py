"""The registered workers as a service follows them: announcements on the bus, and for a service that starts the bucket.

Nothing waits for JetStream for longer than one round of announcements (docs/adr/0004-nothing-waits-for-jetstream.md).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pointsman_contracts.subjects import ANY, plain
from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.listening import ListeningClock
from pointsman_runtime.jetstream.registrations import Registrations
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

TICK_S: Final = 0.1
"""How often `tick` is called: more often than the longest step of a `ListeningClock`."""
_LOOK_S: Final = 0.02

_log = Log("workers")


class WorkerRegistry:
    """Follows the workers from `begin` on. Call `tick` every `TICK_S`, and `reported` for every load report."""

    def __init__(
        self,
        bus: Bus,
        bucket: Bucket,
        on_registered: Callable[[WorkerRegistration], None],
        on_left: Callable[[str, str], None],
        on_malformed: Callable[[], None] = lambda: None,
        on_announced: Callable[[WorkerAnnouncement], None] | None = None,
    ) -> None:
        """`on_left(pool, worker)`. ValueError from `on_registered` refuses a registration: it is logged, and
        `on_malformed` counts it. `on_announced` gets each announcement after its registration."""
        self._bus: Final = bus
        self._bucket: Final = bucket
        self._on_malformed: Final = on_malformed
        self._on_announced: Final = on_announced
        self._clock: Final = ListeningClock()
        self._table: Final = Registrations(on_registered, on_left)
        self._listed: Final = asyncio.Event()
        self._refusals: Final[set[str]] = set()
        """Workers whose registration was refused and logged."""
        self.complete = False
        """Every worker has been reported, by the bucket or by its agent."""
        bus.listen(WorkerAnnouncement, self._announced, ANY, ANY)

    async def follow_workers(self) -> None:
        """Follow the bucket; returns once it is listed and has every worker that reports load, or once every agent has
        had time to announce its worker."""
        self._bucket.watch(self._stored, self._unstored, self._listed.set)
        try:
            async with asyncio.timeout(TIMES.announced_within_s):
                await self._listed.wait()
                if self._table.is_empty:
                    # It is new, or one that takes no writes.
                    await asyncio.sleep(TIMES.loads_within_s)
                while self._table.has_strangers:  # noqa: ASYNC110 - reports that stop coming set no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            _log.warning(
                "workers_not_listed",
                waited_s=TIMES.announced_within_s,
                hint="the bucket pm-workers is unreadable or incomplete; the known workers announced themselves",
            )
        self.complete = True

    def receive_load(self, load: WorkerLoad) -> None:
        """A worker's load came."""
        self._table.receive_load(load, self._now())

    def find_departed(self) -> None:
        """Find the workers that have left."""
        now = asyncio.get_running_loop().time()
        self._clock.note_time(now, listening=self._bus.connected)
        self._table.find_departed(self._clock.listened_seconds(now))

    def _announced(self, announcement: WorkerAnnouncement) -> None:
        try:
            self._table.receive_announcement(announcement, self._now())
        except ValueError as error:
            self._refused(announcement.registration.worker, error)
            return
        if self._on_announced is not None:
            self._on_announced(announcement)

    def _stored(self, entry: Entry) -> None:
        try:
            self._table.note_entry(WorkerRegistration.decode(entry.value), self._now())
        except ValueError as error:  # MalformedMessage is one
            self._refused(entry.key, error)

    def _refused(self, worker: str, error: ValueError) -> None:
        self._on_malformed()
        if worker in self._refusals:
            return
        self._refusals.add(worker)
        _log.warning("malformed_registration", worker=worker, problem=type(error).__name__)

    def _unstored(self, key: str) -> None:
        pool, _, worker = key.partition(".")
        self._table.note_entry_gone(plain(pool), plain(worker), self._now())

    def _now(self) -> float:
        return self._clock.listened_seconds(asyncio.get_running_loop().time())
