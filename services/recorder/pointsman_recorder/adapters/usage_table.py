"""Usage in the database: the records that the ledger still needs, those already counted, and the sums.

Sums are made only from the ledger: a recorder that lost its database reads the ledger again and gets the same sums.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final, cast

from pointsman_contracts.money import NANOS
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSum
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.keys import earlier_key_of, inserted, key_of, present, time_of
from pointsman_recorder.domain.usage_record import DAY_MS, USAGE_COLUMNS, Owed, Sums, counted, day_of

_COUNTED: Final = "usage_counted (key, at_ms)"
KEYS: Final = ("day", "tenant", "subject", "key", "model")
_ADD: Final = (
    f"INSERT INTO usage_sums ({', '.join((*KEYS, *USAGE_COLUMNS))}) "  # noqa: S608 - of names in this service
    f"VALUES ({', '.join('?' * (len(KEYS) + len(USAGE_COLUMNS)))}) ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in USAGE_COLUMNS)
)
_COLUMNS_OF: Final = attrgetter(*USAGE_COLUMNS)
_NO_ROW: Final = -1
MOST_NAMES: Final = 20
"""Models without a price that an answer lists at most."""


class UsageTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection = database.connection
        self._unread: _Unread | None = None
        """None until it is read from the database."""
        self._counted_until_ms: int | None = None
        """No counted record has a later time. None until it is read from the database."""

    def owe_records(self, records: Sequence[Owed]) -> list[Owed]:
        """The ledger is to get these records, those of them that weren't read in it; returns those."""
        unread = self._those_unread()
        given = {each.key: each for each in records if each.key not in unread.rows}
        if not given:
            return []
        until = self._counted_until()
        # The sums have records up to a moment ago. Most records end later, and needn't be looked for.
        for key in self._counted([(each.at_ms, key) for key, each in given.items() if each.at_ms <= until]):
            del given[key]
        if given:
            lines = b"\n".join([each.message for each in given.values()])
            row = self._connection.execute("INSERT INTO usage_owed (records) VALUES (?)", (lines,)).lastrowid
            unread.add(cast("int", row), given)
        return [*given.values()]

    @property
    def unread_count(self) -> int:
        """How many records the ledger is to get, or got, that weren't read in it yet."""
        return len(self._those_unread().rows)

    def list_owed(self, after: str, at_most: int) -> list[Owed]:
        """Records that weren't read in the ledger yet, by their keys, which are greater than `after`."""
        rows = self._those_unread().rows
        found = [
            Owed(record.key, record.identity.tenant, line, record.at_ms)
            for row, line, record in self._lines()
            if record.key > after and rows.get(record.key) == row
        ]
        return sorted(found, key=attrgetter("key"))[:at_most]

    def start_again(self) -> None:
        """A transaction was undone."""
        self._unread = None
        self._counted_until_ms = None

    @property
    def read_progress(self) -> tuple[str, int]:
        """Which ledger was read, and to which sequence."""
        rows: dict[str, str] = dict(self._connection.execute("SELECT name, value FROM progress").fetchall())
        return rows.get("ledger", ""), int(rows.get("sequence", "0"))

    def read_to(self, ledger: str, sequence: int) -> None:
        """Remember how far the ledger was read."""
        rows = [("ledger", ledger), ("sequence", str(sequence))]
        self._connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?)", rows)

    def count_records(self, records: Sequence[UsageRecord]) -> int:
        """Add records of the ledger to the sums, each once; how many weren't counted yet."""
        unread = self._those_unread()
        known = self._counted_earlier((record.at_ms, record.key) for record in records)
        fresh = [record for record in records if record.key not in known] if known else records
        keys = [(key_of(at_ms := record.at_ms, record.key), at_ms) for record in fresh]
        new = inserted(self._connection, _COUNTED, fresh, keys)
        parts: defaultdict[tuple[int, str, str, str, str], list[UsageRecord]] = defaultdict(list)
        for record in new:
            identity = record.identity
            row = record.at_ms // DAY_MS, identity.tenant, identity.subject, identity.key, record.model
            parts[row].append(record)
        sums = [(day_of(day * DAY_MS), *names, *_COLUMNS_OF(counted(part))) for (day, *names), part in parts.items()]
        cursor = self._connection.cursor()
        cursor.executemany(_ADD, sums)
        done = unread.take_read_rows([record.key for record in records])
        self._counted_until_ms = max([self._counted_until(), *(at_ms for _, at_ms in keys)])
        cursor.executemany("DELETE FROM usage_owed WHERE id = ?", [(row,) for row in done])
        return len(new)

    def delete_expired(self, keys_before_ms: int, day: str) -> None:
        """Delete what no event can come again for, and sums of days before one."""
        self._shorten_owed()
        self._connection.execute("DELETE FROM usage_counted WHERE at_ms < ?", (keys_before_ms,))
        self._connection.execute("DELETE FROM usage_sums WHERE day < ?", (day,))

    def sum_usage(self, query: UsageQuery, at_most: int) -> Sums:
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

    def _shorten_owed(self) -> None:
        """Delete the read records of rows with unread ones: without its key, a record would be owed again."""
        unread = self._those_unread().rows
        left: dict[int, list[bytes]] = {}
        shorter: set[int] = set()
        for row, line, record in self._lines():
            lines = left.setdefault(row, [])
            if unread.get(record.key) == row:
                lines.append(line)
            else:
                shorter.add(row)
        changes = [(b"\n".join(left[row]), row) for row in shorter if left[row]]
        self._connection.executemany("UPDATE usage_owed SET records = ? WHERE id = ?", changes)
        self._connection.executemany(
            "DELETE FROM usage_owed WHERE id = ?", [(row,) for row in shorter if not left[row]]
        )

    def _counted(self, keys: Sequence[tuple[int, str]]) -> set[str]:
        """Those of the keys, each with its time, whose records are in the sums."""
        names = {key_of(at_ms, key): key for at_ms, key in keys}
        found = present(self._connection, "usage_counted", [*names])
        return {names[name] for name in found} | self._counted_earlier(keys)

    def _counted_earlier(self, keys: Iterable[tuple[int, str]]) -> set[str]:
        """Like `_counted`, of those that an earlier version counted."""
        until = self._database.earlier_keys_until_ms
        if until < 0:
            return set()
        names = {earlier_key_of(key): key for at_ms, key in keys if at_ms <= until}
        return {names[name] for name in present(self._connection, "usage_counted", [*names])}

    def _counted_until(self) -> int:
        if self._counted_until_ms is None:
            [(latest,)] = self._connection.execute("SELECT MAX(key) FROM usage_counted").fetchall()
            self._counted_until_ms = max(time_of(latest or b""), self._database.earlier_keys_until_ms)
        return self._counted_until_ms

    def _those_unread(self) -> "_Unread":
        if self._unread is None:
            rows: dict[int, list[tuple[int, str]]] = {}
            for row, _, record in self._lines():
                rows.setdefault(row, []).append((record.at_ms, record.key))
            self._unread = _Unread()
            for row, keys in rows.items():
                counted_already = self._counted(keys)
                self._unread.add(row, [key for _, key in keys if key not in counted_already])
        return self._unread

    def _lines(self) -> Iterator[tuple[int, bytes, UsageRecord]]:
        for row, records in self._connection.execute("SELECT id, records FROM usage_owed ORDER BY id").fetchall():
            for line in records.split(b"\n"):
                yield row, line, UsageRecord.decode(line)

    def _select(self, columns: str, given: Mapping[str, str | int], rest: str) -> sqlite3.Cursor:
        where = f" WHERE {' AND '.join(given)}" if given else ""
        statement = f"SELECT {columns} FROM usage_sums{where}{rest}"  # noqa: S608 - of names in this file
        return self._connection.execute(statement, list(given.values()))


class _Unread:
    """Which records of `usage_owed` weren't read in the ledger yet. A row goes with the last of its records."""

    def __init__(self) -> None:
        self.rows: Final[dict[str, int]] = {}
        """By the record's key."""
        self._left: dict[int, int] = {}

    def add(self, row: int, keys: Collection[str]) -> None:
        """A row has records with these keys."""
        self.rows.update(dict.fromkeys(keys, row))
        self._left[row] = len(keys)

    def take_read_rows(self, keys: Iterable[str]) -> list[int]:
        """The records with these keys were read; returns the rows without unread records."""
        left = self._left
        read = Counter(map(self.rows.pop, keys, repeat(_NO_ROW)))
        del read[_NO_ROW]
        for row, count in read.items():
            left[row] -= count
        done = [row for row, count in left.items() if not count]
        for row in done:
            del left[row]
        return done
