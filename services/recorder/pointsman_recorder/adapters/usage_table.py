"""Usage in the database: what the ledger doesn't have yet, which of its records were counted, and the sums.

Sums are made of the ledger alone: a recorder that lost its database reads the ledger again and has the same ones.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSum
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_table import digest
from pointsman_recorder.domain.usage_record import USAGE_COLUMNS, counted, day_of

KEYS: Final = ("day", "tenant", "subject", "model")
_ADD: Final = (
    f"INSERT INTO usage_sums ({', '.join((*KEYS, *USAGE_COLUMNS))}) "  # noqa: S608 - of names in this service
    f"VALUES ({', '.join('?' * (len(KEYS) + len(USAGE_COLUMNS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in USAGE_COLUMNS)
)


class UsageTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._connection: sqlite3.Connection = database.connection

    def owe(self, record: UsageRecord) -> None:
        """The ledger is to get a record, unless it has it."""
        known = self._connection.execute("SELECT 1 FROM usage_counted WHERE key = ?", (digest(record.key),))
        if known.fetchone() is None:
            row = (record.key, record.identity.tenant, record.encode())
            self._connection.execute("INSERT OR IGNORE INTO usage_unwritten VALUES (?, ?, ?)", row)

    def owed(self, at_most: int) -> list[tuple[str, str, bytes]]:
        """Records that the ledger is to get: key, tenant, message."""
        return self._connection.execute(
            "SELECT key, tenant, record FROM usage_unwritten LIMIT ?", (at_most,)
        ).fetchall()

    def paid(self, keys: Sequence[str]) -> None:
        """The ledger has these."""
        self._connection.executemany("DELETE FROM usage_unwritten WHERE key = ?", [(key,) for key in keys])

    @property
    def progress(self) -> tuple[str, int]:
        """Which ledger was read, and to which sequence."""
        rows: dict[str, str] = dict(self._connection.execute("SELECT name, value FROM progress").fetchall())
        return rows.get("ledger", ""), int(rows.get("sequence", "0"))

    def read_to(self, ledger: str, sequence: int) -> None:
        """Remember how far the ledger was read."""
        rows = [("ledger", ledger), ("sequence", str(sequence))]
        self._connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?)", rows)

    def count(self, record: UsageRecord) -> bool:
        """Add a record of the ledger to the sums; False when it was counted already."""
        row = (digest(record.key), record.at_ms)
        if self._connection.execute("INSERT OR IGNORE INTO usage_counted VALUES (?, ?)", row).rowcount != 1:
            return False
        identity = record.identity
        keys = (day_of(record.at_ms), identity.tenant, identity.subject, record.model)
        self._connection.execute(_ADD, (*keys, *counted(record)))
        self._connection.execute("DELETE FROM usage_unwritten WHERE key = ?", (record.key,))
        return True

    def forget(self, keys_before_ms: int, day: str) -> None:
        """Delete what no event can come again for, and sums of days before one."""
        self._connection.execute("DELETE FROM usage_counted WHERE at_ms < ?", (keys_before_ms,))
        self._connection.execute("DELETE FROM usage_sums WHERE day < ?", (day,))

    def sums(self, query: UsageQuery, at_most: int) -> tuple[list[UsageSum], bool]:
        """The rows of an answer, and whether there are more. Raises ValueError for a `by` that no row has."""
        by = [name for name in KEYS if name in query.by]
        strange = set(query.by) - set(KEYS)
        if strange:
            raise ValueError(f"rows have {', '.join(KEYS)}; not {', '.join(sorted(strange))}")
        wanted = {
            "day >= ?": query.since, "day <= ?": query.until, "tenant = ?": query.tenant, "model = ?": query.model,
        }  # fmt: skip
        given = {condition: value for condition, value in wanted.items() if value is not None}
        columns = [*by, *(f"SUM({name}) AS {name}" for name in USAGE_COLUMNS)]
        where = f" WHERE {' AND '.join(given)}" if given else ""
        grouped = f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}" if by else ""
        statement = f"SELECT {', '.join(columns)} FROM usage_sums{where}{grouped} LIMIT {at_most + 1}"  # noqa: S608 - of names in this file
        found = self._connection.execute(statement, list(given.values()))
        names = (*by, *USAGE_COLUMNS)
        rows = [dict(zip(names, row, strict=True)) for row in found]
        sums = [UsageSum.model_validate(row) for row in rows if row["requests"]]
        return sums[:at_most], len(sums) > at_most
