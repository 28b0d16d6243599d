"""The database as the rest of the service sees it: every access in one thread, every change in one transaction."""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from typing import Final, NamedTuple, TypeVar

import orjson

from pointsman_contracts.attainment import AttainmentQuery
from pointsman_contracts.engine_time import EngineTimeQuery
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.regret import RegretQuery
from pointsman_contracts.story import KeptEvent
from pointsman_contracts.usage import LostSum, UsageQuery, UsageRecord
from pointsman_recorder.adapters.attainment_table import AttainmentTable
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.engine_time_table import EngineTimeTable
from pointsman_recorder.adapters.event_gaps_table import EventGapsTable
from pointsman_recorder.adapters.event_table import EventTable, ReadPlace
from pointsman_recorder.adapters.regret_table import RegretTable
from pointsman_recorder.adapters.usage_table import UsageTable
from pointsman_recorder.domain.attainment_row import AttainmentAnswer
from pointsman_recorder.domain.engine_shares import EngineTimeAnswer
from pointsman_recorder.domain.entry import COMPLETED, JUDGED, RecordedEvent
from pointsman_recorder.domain.regret_sums import RegretAnswer, of_request
from pointsman_recorder.domain.usage_record import Owed, Sums, day_of

LARGEST_ANSWER: Final = 700_000
"""Bytes of events in one answer; the smallest `max_payload` that servers have by default is 1 MiB."""
MOST_ROWS: Final = 2000
"""Rows of sums in one answer."""
_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)

T = TypeVar("T")


class KeptBatch(NamedTuple):
    """The result of storing a batch."""

    new: int
    repeated: int
    owed: list[Owed]
    """Ledger records due for the new events; without those that were read in the ledger."""
    fresh: Sequence[RecordedEvent]


class StoreBounds(NamedTuple):
    """How long data is kept, in days, and how large the file may grow."""

    event_days: float
    event_bytes: int
    sum_days: float


class EventStore:
    """Opens the database at once; close it at the end."""

    def __init__(self, database: Database, bounds: StoreBounds) -> None:
        self.fresh: Final = database.empty
        """The database was made just now."""
        self.unread = 0
        """See `UsageTable.unread_count`; as of the last `keep` or `count`."""
        self._database = database
        self._bounds = bounds
        self._events = EventTable(database)
        self._usage = UsageTable(database)
        self._regret = RegretTable(database)
        self._attainment = AttainmentTable(database)
        self._gaps = EventGapsTable(database)
        self._engine_time = EngineTimeTable(database)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")

    async def keep_events(self, entries: Sequence[RecordedEvent], place: ReadPlace | None = None) -> KeptBatch:
        """Keep events, each once; the usage of those that end a request is owed to the ledger from then on. With them,
        everything up to `place` is kept."""

        def keep() -> KeptBatch:
            with self._transaction():
                new = self._events.add_entries(entries)
                if place is not None:
                    self._events.move_place(place)
                self._gaps.note_events(new)
                owed = self._usage.owe_records([owed for entry in new for owed in entry.owed])
                self._regret.add_rows([(entry.judge, row) for entry in new if entry.regret for row in entry.regret])
                self._attainment.add_rows([(entry.at_ms, row) for entry in new if (row := entry.attained) is not None])
                if self._engine_time.lives.prices:
                    ends = (end for entry in new if (end := entry.end) is not None)
                    self._engine_time.add_answers(ends, time.time_ns() // 1000)
            self.unread = self._usage.unread_count
            return KeptBatch(len(new), len(entries) - len(new), owed, new)

        return await self._run(keep)

    async def read_place(self) -> ReadPlace:
        """Everything in the stream of events up to here is kept."""
        return await self._run(lambda: self._events.place)

    async def list_owed(self, after: str, at_most: int) -> list[Owed]:
        """See `UsageTable.list_owed`."""
        return await self._run(lambda: self._usage.list_owed(after, at_most))

    async def read_progress(self) -> tuple[str, int]:
        """See `UsageTable.read_progress`."""
        return await self._run(lambda: self._usage.read_progress)

    async def count_records(self, ledger: str, records: Sequence[UsageRecord], sequence: int) -> int:
        """Add records of the ledger to the sums, which was read to `sequence` with them; how many were new."""

        def count() -> int:
            with self._transaction():
                new = self._usage.count_records(records)
                self._usage.read_to(ledger, sequence)
            self.unread = self._usage.unread_count
            return new

        return await self._run(count)

    async def read_story(self, request_id: str) -> tuple[list[KeptEvent], bool]:
        """See `EventTable.of_request`; and the judgements of its requests that have ended, without other requests."""

        def story() -> tuple[list[KeptEvent], bool]:
            events, more = self._events.of_request(request_id, LARGEST_ANSWER)
            ended = [event.body for event in events if event.type == COMPLETED]
            if ended:
                bodies = self._events.find_judgements(orjson.loads(ended[0])["at_ms"], request_id)
                judged = [found for body in bodies if (found := of_request(body, request_id)) is not None]
                events += [KeptEvent(type=JUDGED, body=body.decode()) for body in judged]
            return events, more

        return await self._run(story)

    async def story_of_trace(self, trace: str) -> tuple[list[KeptEvent], bool]:
        """See `EventTable.of_trace`."""
        return await self._run(lambda: self._events.of_trace(trace, LARGEST_ANSWER))

    async def sum_usage(self, query: UsageQuery) -> Sums:
        """See `UsageTable.sum_usage`."""
        return await self._run(lambda: self._usage.sum_usage(query, MOST_ROWS))

    async def sum_lost(self, query: UsageQuery) -> list[LostSum]:
        """The events that are missing on the days of a query, by type."""
        since = None if query.since is None else _day_ms(query.since)
        until = None if query.until is None else _day_ms(query.until) + _DAY_MS - 1
        return await self._run(lambda: self._gaps.sum_lost(since, until))

    async def sum_regret(self, query: RegretQuery, judge: str) -> RegretAnswer:
        """See `RegretTable.sum_regret`."""
        return await self._run(lambda: self._regret.sum_regret(query, judge, MOST_ROWS))

    async def sum_attainment(self, query: AttainmentQuery) -> tuple[AttainmentAnswer, list[LostSum]]:
        """See `AttainmentTable.sum_attainment`; and the events that are missing in this time, by type."""

        def attainment() -> tuple[AttainmentAnswer, list[LostSum]]:
            found = self._attainment.sum_attainment(query, MOST_ROWS)
            return found, self._gaps.sum_lost(found.since_ms, found.until_ms)

        return await self._run(attainment)

    def note_engines(self, snapshot: PoolSnapshot) -> None:
        """The engines of a pool are listed now."""
        self._engine_time.lives.take_snapshot(snapshot, time.time_ns() // 1000)

    async def sum_engine_time(self, query: EngineTimeQuery) -> EngineTimeAnswer:
        """See `EngineTimeTable.sum_engine_time`."""
        lives = self._engine_time.lives.take_changed()

        def engine_time() -> EngineTimeAnswer:
            with self._transaction():
                self._engine_time.add_lives(lives)
                return self._engine_time.sum_engine_time(query, MOST_ROWS)

        return await self._run(engine_time)

    async def size(self) -> int:
        """Bytes in use."""
        return await self._run(lambda: self._database.size)

    async def delete_expired(self, event_stream_days: float, behind: int = 0) -> int:
        """Delete data beyond the age and size limits. `event_stream_days`: how old an event may be that is delivered
        (again). `behind`: events that weren't read yet."""
        now_ms = time.time_ns() // 1_000_000
        lives = self._engine_time.lives.take_changed()
        gone = 0

        def some() -> int:
            with self._transaction():
                return self._events.delete_oldest(
                    now_ms - round(self._bounds.event_days * _DAY_MS), self._bounds.event_bytes
                )

        # Others have a turn between the pieces.
        while deleted := await self._run(some):
            gone += deleted

        def usage() -> None:
            with self._transaction():
                self._events.forget_traces(now_ms - round(self._bounds.event_days * _DAY_MS))
                keys_before_ms = now_ms - round((event_stream_days + 1) * _DAY_MS)
                day = day_of(now_ms - round(self._bounds.sum_days * _DAY_MS))
                self._usage.delete_expired(keys_before_ms, day)
                self._regret.delete_before(day)
                self._attainment.delete_expired(now_ms)
                self._engine_time.add_lives(lives)
                if not behind:
                    self._engine_time.close_periods(now_ms * 1000)
                self._engine_time.delete_before(day)
                self._gaps.delete_expired(keys_before_ms, now_ms - round(self._bounds.sum_days * _DAY_MS))

        await self._run(usage)
        return gone

    async def close(self) -> None:
        """Finish the work in progress."""
        lives = self._engine_time.lives.take_changed()
        await self._run(lambda: self._engine_time.add_lives(lives))
        await self._run(self._database.close)
        self._thread.shutdown()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        connection = self._database.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        # On any exception: half of a transaction is never kept, nor left open. A full disk may show at the commit.
        except BaseException:
            self._usage.start_again()
            self._gaps.start_again()
            self._engine_time.start_again()
            # SQLite itself ends a transaction that it can't write.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _day_ms(day: str) -> int:
    """When a day of UTC begins, unix milliseconds. Raises ValueError for a text that is no day."""
    return (date.fromisoformat(day) - _EPOCH).days * _DAY_MS
