"""The work of the recorder: from the stream of events into the store, from the store into the ledger, from the ledger
into the sums.

It is done in that order, so that an end at any moment loses nothing and counts nothing twice: an event is acknowledged
once it is in the store and its usage in the ledger; sums are made of the ledger alone.

A record that was read in the ledger is there, so the server needn't confirm it. It confirms records only while the
reading is behind, or when they aren't read in time: it may have dropped them, for which it gives its reason then.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from pointsman_recorder.adapters.confirmations import NotWritten
from pointsman_recorder.adapters.event_feed import EventFeed
from pointsman_recorder.adapters.judging import Judging
from pointsman_recorder.adapters.ledger import UsageLedger
from pointsman_recorder.adapters.metrics import RecorderMetrics
from pointsman_recorder.adapters.pull import Missed
from pointsman_recorder.adapters.store import EventStore
from pointsman_recorder.domain.usage_record import Owed
from pointsman_runtime.bus.backoff import full_jitter
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log

WRITTEN_AT_ONCE: Final = 1024
"""Records."""
_READ_BACK_S: Final = 5.0
"""Seconds within which records are read in the ledger after they were sent to it."""
_UNDER_WAY_S: Final = 1.0
"""After so many seconds without any of them, no more of the records are read that were sent before."""
_FORGET_EVERY_S: Final = 60.0
_EXPECTED: Final = (NatsError, JetStreamError, BusError, OSError, TimeoutError, sqlite3.Error, Missed, NotWritten)
"""Temporary failures: the bus is away, the disk is full. The work resumes where it stopped."""

_log = Log("recorder")


class Recording:
    """Three loops, each for the life of the service."""

    def __init__(
        self,
        store: EventStore,
        feed: EventFeed,
        ledger: UsageLedger,
        metrics: RecorderMetrics,
        judging: Judging | None = None,
    ) -> None:
        """`judging`: None for a recorder that judges no decision."""
        self._judging = judging
        self._store = store
        self._feed = feed
        self._ledger = ledger
        self._metrics = metrics
        self._anew = store.fresh
        self._told_unreadable = False
        self._event_days = 0.0
        self._caught_up = asyncio.Event()
        """Set when the ledger's content at the start was read: the records due to it are known."""
        self._read_on = asyncio.Event()
        """Set when more of the ledger was read."""
        self._read_to = 0
        """Sequence in the ledger."""
        self.behind = 0
        """Events that weren't read yet."""

    @property
    def missing(self) -> str | None:
        """Why questions aren't answered in full yet; None when they are."""
        return None if self._caught_up.is_set() else "the usage ledger isn't read yet"

    async def follow_ledger(self) -> None:
        """Add the ledger's records to the sums."""
        await self._tirelessly("ledger", self._follow_ledger)

    async def run_recording(self) -> None:
        """Keep events and write the ledger."""
        await self._tirelessly("events", self._record)

    async def run_deletion(self) -> None:
        """Delete data beyond the age and size limits, periodically."""
        await self._tirelessly("retention", self._forget)

    async def _follow_ledger(self) -> None:
        async for page in self._ledger.read(*await self._store.read_progress()):
            new = await self._store.count_records(page.ledger, page.records, page.last)
            self._read_to = page.last
            self._read_on.set()
            self._metrics.counted.inc(new)
            self._metrics.repeated.inc(len(page.records) - new)
            self._metrics.unreadable.inc(len(page.unreadable))
            if page.unreadable and not self._told_unreadable:
                self._told_unreadable = True
                _log.warning("malformed_record", sequence=page.unreadable[0])
            if page.complete:
                self._caught_up.set()

    async def _record(self) -> None:
        await self._caught_up.wait()
        place = await self._store.read_place()
        self._event_days = await self._feed.open_feed(place, from_the_beginning=self._anew)
        self._anew = False
        try:
            await self._write_owed()
            while True:
                batch = await self._feed.next_batch()
                if batch is None:
                    self._is_behind(0)
                    if self._judging is not None:
                        self._judging.publish_verdicts()
                    continue
                kept = await self._store.keep_events(batch.entries, self._feed.place_after(batch))
                await self._charge(kept.owed)
                self._feed.acknowledge_batch(batch)
                for subject, size, sequence in batch.unreadable:
                    _log.warning("malformed_message", subject=subject, size=size, sequence=sequence)
                for outcome, count in (
                    ("kept", kept.new), ("repeated", kept.repeated), ("unreadable", len(batch.unreadable)),
                ):  # fmt: skip
                    self._metrics.events.labels(outcome).inc(count)
                self._is_behind(batch.behind)
                if self._judging is not None:
                    await self._judging.judge_events(kept.fresh)
        finally:
            self._feed.close()

    async def _charge(self, owed: Sequence[Owed]) -> None:
        """Returns once these records of a batch are in the ledger, and those of earlier ones."""
        if self._store.unread > len(owed):
            await self._write(owed)
        elif owed:
            self._ledger.send_records(owed)
            # Another recorder's copy may have been read before ours was sent.
            in_time = await self._reads(lambda: not self._store.unread)
            self._metrics.records.inc(len(owed) - self._store.unread)
            if not in_time:
                await self._write_owed()

    async def _reads(self, enough: Callable[[], bool], within_s: float = _READ_BACK_S) -> bool:
        """Whether enough of the ledger is read in time."""
        try:
            async with asyncio.timeout(within_s):
                while not enough():
                    self._read_on.clear()
                    await self._read_on.wait()
        except TimeoutError:
            return False
        return True

    async def _write_owed(self) -> None:
        """Write the records that an earlier try or process left unwritten, or that weren't found in the ledger."""
        after = ""
        if await self._store.list_owed(after, 1):
            await self._read_those_written()
        while owed := await self._store.list_owed(after, WRITTEN_AT_ONCE):
            await self._write(owed)
            after = owed[-1].key

    async def _read_those_written(self) -> None:
        """Read the owed records that are in the ledger, or come to it late: the server recognizes them only for some
        seconds. Raises NotWritten when the reading doesn't get to the ledger's end: none may be written then."""
        last = await self._ledger.read_last_sequence()
        if not await self._reads(lambda: self._read_to >= last):
            raise NotWritten("the ledger isn't read to its end")
        # A server that stood still takes what was sent to it after it has answered others.
        while unread := self._store.unread:
            if not await self._reads(lambda unread=unread: self._store.unread < unread, _UNDER_WAY_S):
                return

    async def _write(self, owed: Sequence[Owed]) -> None:
        if owed:
            await self._ledger.write_confirmed(owed)
            self._metrics.records.inc(len(owed))

    async def _forget(self) -> None:
        while True:
            if self._event_days:
                self._metrics.forgotten.inc(await self._store.delete_expired(self._event_days, self.behind))
            self._metrics.store_bytes.set(await self._store.size())
            await asyncio.sleep(_FORGET_EVERY_S)

    def _is_behind(self, count: int) -> None:
        self.behind = count
        self._metrics.behind.set(count)

    async def _tirelessly(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat work that ended by what passes; the first failure of each kind is logged."""
        said = ""
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await work()
            except* _EXPECTED as group:
                error = group.exceptions[0]
                self._metrics.failures.labels(what).inc()
                # SQLite's name tells a full disk from a broken one.
                reason = str(getattr(error, "sqlite_errorname", type(error).__name__))
                if reason != said:
                    said = reason
                    _log.warning("work_begins_anew", work=what, reason=said)
            failures = failures + 1 if asyncio.get_running_loop().time() - began < 30 else 1
            await asyncio.sleep(full_jitter(failures))
