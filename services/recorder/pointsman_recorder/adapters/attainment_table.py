"""Sums of service levels in the database, by minute, made of the events alone: each event counts once, with the event
itself."""

import sqlite3
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from pointsman_contracts.attainment import AttainmentQuery, AttainmentSum
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.domain.attainment_row import AttainmentAnswer
from pointsman_recorder.domain.numbers import calendar_ms

KEYS: Final = ("service_class", "tenant", "model")
AMOUNTS: Final = (
    "kept", "missed", "unknown", "refused", "tokens", "promised", "promised_us", "predicted", "predicted_us", "got_us",
)  # fmt: skip
_ADD: Final = (
    f"INSERT INTO attainment_sums ({', '.join(('minute', *KEYS, *AMOUNTS))}) "  # noqa: S608 - of names in this file
    f"VALUES ({', '.join('?' * (1 + len(KEYS) + len(AMOUNTS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in AMOUNTS)
)
_COLUMNS_OF: Final = attrgetter(*KEYS, *AMOUNTS)
_MINUTE_MS: Final = 60_000
_DAY_MINUTES: Final = 1440
_KEPT_DAYS: Final = 2


class AttainmentTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._connection: sqlite3.Connection = database.connection

    def add_rows(self, rows: Sequence[tuple[int, AttainmentSum]]) -> None:
        """Add the parts of requests, each with the time of its end in unix milliseconds."""
        if rows:
            sums = [(calendar_ms(at_ms) // _MINUTE_MS, *_COLUMNS_OF(row)) for at_ms, row in rows]
            self._connection.executemany(_ADD, sums)

    def delete_expired(self, now_ms: int) -> None:
        """Delete sums that are older than two days, and those of clocks that are more than a day ahead."""
        now = now_ms // _MINUTE_MS
        self._connection.execute(
            "DELETE FROM attainment_sums WHERE minute NOT BETWEEN ? AND ?",
            (now - _KEPT_DAYS * _DAY_MINUTES, now + _DAY_MINUTES),
        )

    def sum_attainment(self, query: AttainmentQuery, at_most: int) -> AttainmentAnswer:
        """The rows of an answer. Raises ValueError for a `by` that no row has."""
        by = [name for name in KEYS if name in query.by]
        strange = set(query.by) - set(KEYS)
        if strange:
            raise ValueError(f"rows have {', '.join(KEYS)}; not {', '.join(sorted(strange))}")
        now_ms = time.time_ns() // 1_000_000
        until_ms = now_ms if query.until_ms is None else query.until_ms
        [(first,)] = self._connection.execute("SELECT MIN(minute) FROM attainment_sums").fetchall()
        oldest = until_ms // _MINUTE_MS if first is None else first
        since = oldest if query.since_ms is None else max(calendar_ms(query.since_ms) // _MINUTE_MS, oldest)
        columns = ", ".join([*by, *(f"SUM({name})" for name in AMOUNTS)])
        # Without an end, minutes of clocks that are ahead of this one count too.
        given = "minute >= ?" if query.until_ms is None else "minute >= ? AND minute * 60000 < ?"
        values = [since] if query.until_ms is None else [since, calendar_ms(query.until_ms)]
        grouped = f"GROUP BY {', '.join(by)} ORDER BY SUM(missed) DESC, {', '.join(by)}" if by else ""
        found = self._connection.execute(
            f"SELECT {columns} FROM attainment_sums WHERE {given} {grouped} LIMIT {at_most + 1}",  # noqa: S608 - of names in this file
            values,
        )
        rows = [AttainmentSum(**dict(zip((*by, *AMOUNTS), row, strict=True))) for row in found if row[-1] is not None]
        since_ms = min(since * _MINUTE_MS, until_ms)
        return AttainmentAnswer(rows[:at_most], len(rows) > at_most, since_ms, min(until_ms, now_ms))
