"""Usage in the database: the records that the ledger still needs, those already counted, and the sums.

Sums are made only from the ledger: a recorder that lost its database reads the ledger again and gets the same sums.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from pointsman_contracts.money import NANOS
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSum
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_table import digest, inserted
from pointsman_recorder.domain.usage_record import USAGE_COLUMNS, Counted, Owed, Sums, counted, day_of

_COUNT: Final = "INSERT OR IGNORE INTO usage_counted VALUES (?, ?)"
_OWE: Final = (
    "INSERT OR IGNORE INTO usage_unwritten SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM usage_counted WHERE key = ?)"
)
KEYS: Final = ("day", "tenant", "subject", "key", "model")
_ADD: Final = (
    f"INSERT INTO usage_sums ({', '.join((*KEYS, *USAGE_COLUMNS))}) "  # noqa: S608 - of names in this service
    f"VALUES ({', '.join('?' * (len(KEYS) + len(USAGE_COLUMNS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in USAGE_COLUMNS)
)


MOST_NAMES: Final = 20
"""Models without a price that an answer lists at most."""


class UsageTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._connection: sqlite3.Connection = database.connection

    def owe(self, records: Sequence[Owed]) -> None:
        """The ledger is to get these records, those of them that it doesn't have."""
        self._connection.executemany(_OWE, [(each.key, each.tenant, each.record, digest(each.key)) for each in records])

    def owed(self, after: str, at_most: int) -> list[Owed]:
        """Records that weren't read in the ledger yet, by their keys, which are greater than `after`."""
        rows = self._connection.execute(
            "SELECT key, tenant, record FROM usage_unwritten WHERE key > ? ORDER BY key LIMIT ?", (after, at_most)
        )
        return [Owed(*row) for row in rows]

    @property
    def progress(self) -> tuple[str, int]:
        """Which ledger was read, and to which sequence."""
        rows: dict[str, str] = dict(self._connection.execute("SELECT name, value FROM progress").fetchall())
        return rows.get("ledger", ""), int(rows.get("sequence", "0"))

    def read_to(self, ledger: str, sequence: int) -> None:
        """Remember how far the ledger was read."""
        rows = [("ledger", ledger), ("sequence", str(sequence))]
        self._connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?)", rows)

    def count(self, records: Sequence[UsageRecord]) -> int:
        """Add records of the ledger to the sums, each once; how many weren't counted yet."""
        keys = [(digest(record.key), record.at_ms) for record in records]
        new = inserted(self._connection, _COUNT, records, keys)
        parts: defaultdict[tuple[str, ...], list[Counted]] = defaultdict(list)
        for record in new:
            identity = record.identity
            row = (day_of(record.at_ms), identity.tenant, identity.subject, identity.key, record.model)
            parts[row].append(counted(record))
        cursor = self._connection.cursor()
        cursor.executemany(_ADD, [(*row, *map(sum, zip(*amounts, strict=True))) for row, amounts in parts.items()])
        cursor.executemany("DELETE FROM usage_unwritten WHERE key = ?", [(record.key,) for record in new])
        return len(new)

    def forget(self, keys_before_ms: int, day: str) -> None:
        """Delete what no event can come again for, and sums of days before one."""
        self._connection.execute("DELETE FROM usage_counted WHERE at_ms < ?", (keys_before_ms,))
        self._connection.execute("DELETE FROM usage_sums WHERE day < ?", (day,))

    def sums(self, query: UsageQuery, at_most: int) -> Sums:
        """The rows of an answer. Raises ValueError for a `by` that no row has."""
        by = [name for name in KEYS if name in query.by]
        strange = set(query.by) - set(KEYS)
        if strange:
            raise ValueError(f"rows have {', '.join(KEYS)}; not {', '.join(sorted(strange))}")
        wanted = {
            "day >= ?": query.since, "day <= ?": query.until, "tenant = ?": query.tenant, "key = ?": query.key,
            "model = ?": query.model,
        }  # fmt: skip
        given = {condition: value for condition, value in wanted.items() if value is not None}
        columns = [*by, *(f"SUM({name}) AS {name}" for name in USAGE_COLUMNS)]
        grouped = f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}" if by else ""
        found = self._select(", ".join(columns), given, f"{grouped} LIMIT {at_most + 1}")
        rows = [dict(zip((*by, *USAGE_COLUMNS), row, strict=True)) for row in found]
        sums = [UsageSum(**row, cost=row["cost_nanos"] / NANOS) for row in rows if row["requests"]]
        unpriced = self._select("DISTINCT model", {**given, "unpriced > ?": 0}, f" ORDER BY model LIMIT {MOST_NAMES}")
        return Sums(sums[:at_most], len(sums) > at_most, [name for (name,) in unpriced])

    def _select(self, columns: str, given: Mapping[str, str | int], rest: str) -> sqlite3.Cursor:
        where = f" WHERE {' AND '.join(given)}" if given else ""
        statement = f"SELECT {columns} FROM usage_sums{where}{rest}"  # noqa: S608 - of names in this file
        return self._connection.execute(statement, list(given.values()))
