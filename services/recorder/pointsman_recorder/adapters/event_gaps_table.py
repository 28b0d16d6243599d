"""The events that are missing in the stream, in the database."""

import sqlite3
import time
from collections.abc import Sequence
from typing import Final

from pointsman_contracts.usage import LostSum
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.domain.entry import RecordedEvent
from pointsman_recorder.domain.event_numbers import EventNumbers, Gap, Latest

MAY_COME_MS: Final = 60_000
"""So long after the event that shows it a gap doesn't count as a loss: its publisher may hold the events."""
_DAY_MS: Final = 86_400_000


class EventGapsTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._connection: sqlite3.Connection = database.connection
        self._numbers: EventNumbers | None = None
        """None until it is read from the database."""

    def note_events(self, events: Sequence[RecordedEvent]) -> None:
        numbers = self._numbers
        if numbers is None:
            numbers = self._numbers = self._read()
        numbers.note_events(events)
        if numbers.changed:
            rows = [(series, *numbers.latest_of(series)) for series in numbers.changed]
            self._connection.executemany("INSERT OR REPLACE INTO event_series VALUES (?, ?, ?)", rows)
            numbers.changed.clear()
        for series in numbers.changed_gaps:
            self._connection.execute("DELETE FROM event_gaps WHERE series = ?", (series,))
            gaps = [
                (series, each.first, each.last, each.from_ms, each.to_ms, each.told)
                for each in numbers.find_gaps(series)
            ]
            self._connection.executemany("INSERT INTO event_gaps VALUES (?, ?, ?, ?, ?, ?)", gaps)
        numbers.changed_gaps.clear()

    def start_again(self) -> None:
        """A transaction was undone."""
        self._numbers = None

    def sum_lost(self, since_ms: int | None, until_ms: int | None) -> list[LostSum]:
        """Events that are missing, by type."""
        now_ms = time.time_ns() // 1_000_000
        rows = self._connection.execute(
            "SELECT series, last - first + 1, from_ms, to_ms FROM event_gaps "
            "WHERE (told OR to_ms < ?) AND to_ms >= ? AND from_ms <= ?",
            (now_ms - MAY_COME_MS, since_ms or 0, until_ms or now_ms + _DAY_MS),
        )
        sums: dict[str, LostSum] = {}
        for series, count, from_ms, to_ms in rows:
            kind = ".".join(series.split(".")[2:5])
            known = sums.get(kind)
            sums[kind] = LostSum(
                type=kind,
                count=count + (known.count if known else 0),
                from_ms=min(from_ms, known.from_ms) if known else from_ms,
                to_ms=max(to_ms, known.to_ms) if known else to_ms,
            )
        return [sums[kind] for kind in sorted(sums)]

    def delete_expired(self, series_before_ms: int, gaps_before_ms: int) -> None:
        """Delete series without an event since a time, and gaps of before another one."""
        self._connection.execute("DELETE FROM event_series WHERE at_ms < ?", (series_before_ms,))
        self._connection.execute("DELETE FROM event_gaps WHERE to_ms < ?", (gaps_before_ms,))
        self._numbers = None

    def _read(self) -> EventNumbers:
        latest = {
            series: Latest(number, at_ms)
            for series, number, at_ms in self._connection.execute("SELECT series, number, at_ms FROM event_series")
        }
        gaps: dict[str, list[Gap]] = {}
        for series, first, last, from_ms, to_ms, told in self._connection.execute(
            "SELECT series, first, last, from_ms, to_ms, told FROM event_gaps ORDER BY series, first"
        ):
            gaps.setdefault(series, []).append(
                Gap(first=first, last=last, from_ms=from_ms, to_ms=to_ms, told=bool(told))
            )
        return EventNumbers(latest, gaps)
