"""Sums of regret in the database, made of the events alone: each event counts once, with the event itself."""

import sqlite3
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from pointsman_contracts.regret import RegretQuery, RegretSum
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.domain.regret_sums import RegretAnswer

KEYS: Final = ("pool", "hour", "profile", "reason")
_AMOUNTS: Final = ("requests", "judged", "regret_us", "cost_us")
_ADD: Final = (
    f"INSERT INTO regret_sums ({', '.join(('judge', *KEYS, *_AMOUNTS))}) "  # noqa: S608 - of names in this file
    f"VALUES ({', '.join('?' * (1 + len(KEYS) + len(_AMOUNTS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _AMOUNTS)
)
_COLUMNS_OF: Final = attrgetter(*KEYS, *_AMOUNTS)


class RegretTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._connection: sqlite3.Connection = database.connection

    def add_rows(self, rows: Sequence[tuple[str, RegretSum]]) -> None:
        """Add the parts of events to the sums of their judges."""
        if rows:
            self._connection.executemany(_ADD, [(judge, *_COLUMNS_OF(row)) for judge, row in rows])

    def delete_before(self, hour: str) -> None:
        """Delete sums of hours before one."""
        self._connection.execute("DELETE FROM regret_sums WHERE hour < ?", (hour,))

    def sum_regret(self, query: RegretQuery, judge: str, at_most: int) -> RegretAnswer:
        """The rows of an answer. Raises ValueError for a `by` that no row has."""
        by = [name for name in KEYS if name in query.by]
        strange = set(query.by) - set(KEYS)
        if strange:
            raise ValueError(f"rows have {', '.join(KEYS)}; not {', '.join(sorted(strange))}")
        wanted = {
            "judge = ?": judge, "hour >= ?": query.since, "substr(hour, 1, length(?)) <= ?": query.until,
            "pool = ?": query.pool, "profile = ?": query.profile,
        }  # fmt: skip
        given = {condition: value for condition, value in wanted.items() if value is not None}
        values = [value for condition, value in given.items() for _ in range(condition.count("?"))]
        columns = [*by, *(f"SUM({name})" for name in _AMOUNTS)]
        grouped = f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}" if by else ""
        found = self._connection.execute(
            f"SELECT {', '.join(columns)} FROM regret_sums WHERE {' AND '.join(given)}{grouped} LIMIT {at_most + 1}",  # noqa: S608 - of names in this file
            values,
        )
        rows = [RegretSum(**dict(zip((*by, *_AMOUNTS), row, strict=True))) for row in found if row[-1] is not None]
        return RegretAnswer(rows[:at_most], len(rows) > at_most)
