"""Engine time in the database: when engines were listed, their work for the answers of the last hour, and sums by day.

The time of a period is divided again as long as ends of its requests may come, and added to the sums of its day then.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, cast

from pointsman_contracts.engine_time import EngineTimeQuery, EngineTimeSum
from pointsman_contracts.identity import Identity
from pointsman_contracts.response import ResponseCompleted
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.keys import Row
from pointsman_recorder.domain.engine_listings import LONGEST_GAP_US, EngineListing, EngineListings
from pointsman_recorder.domain.engine_shares import ANSWERS, UNKNOWN, EngineTimeAnswer, Spent, divide
from pointsman_recorder.domain.engine_work import PERIOD_US, AnswerWork, works_of_end
from pointsman_recorder.domain.usage_record import DAY_MS, day_of

KEYS: Final = ("day", "pool", "engine", "tenant", "subject", "key", "model")
_AMOUNTS: Final = ("answers", "estimated", "time_us", "time_nanos")
_COLUMNS: Final = (*KEYS, "state", *_AMOUNTS)
_NAMES: Final = ", ".join(_COLUMNS)
_COLUMNS_OF: Final = attrgetter(*_COLUMNS[3:])
_OPEN_PERIODS: Final = 12
"""A request whose end comes later is counted as unknown: its time was idle."""
_DAY_PERIODS: Final = DAY_MS * 1000 // PERIOD_US
_ANONYMOUS: Final = Identity()
_OPEN: Final = "engine-time-open"
_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS engine_listings (
    pool TEXT, engine TEXT, from_us INTEGER, until_us INTEGER, up INTEGER, boot_id TEXT, hour_nanos INTEGER,
    output_weight REAL, PRIMARY KEY (pool, engine, from_us)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS engine_work (
    pool TEXT, engine TEXT, period INTEGER, from_us INTEGER, until_us INTEGER, pace INTEGER,
    tenant TEXT, subject TEXT, key TEXT, model TEXT, answers INTEGER, estimated INTEGER
);
CREATE INDEX IF NOT EXISTS work_of_engine ON engine_work (period, pool, engine);
CREATE TABLE IF NOT EXISTS engine_days ({_NAMES}, PRIMARY KEY ({", ".join(_COLUMNS[:8])})) WITHOUT ROWID;
CREATE TEMP TABLE engine_open (period INTEGER, {_NAMES});
CREATE TEMP TABLE engine_moments (at INTEGER PRIMARY KEY, us INTEGER, pace INTEGER, unseen INTEGER, up INTEGER,
    listed INTEGER, turned REAL);
"""
_THERE: Final = "FROM engine_work WHERE period = :period AND pool = :pool AND engine = :engine"
_LISTED: Final = "FROM engine_listings WHERE pool = :pool AND engine = :engine AND from_us < :end AND until_us > :start"
_MOMENTS: Final = f"""
INSERT INTO engine_moments SELECT at, us, pace, unseen, up, listed,
    TOTAL(CASE WHEN pace > 0 THEN us * 1.0 / pace END)
    OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) FROM (
  SELECT at, LEAD(at, 1, at) OVER w - at AS us, SUM(pace) OVER w AS pace, SUM(unseen) OVER w AS unseen,
      SUM(up) OVER w AS up, SUM(listed) OVER w AS listed FROM (
    SELECT at, SUM(pace) AS pace, SUM(unseen) AS unseen, SUM(up) AS up, SUM(listed) AS listed FROM (
      SELECT from_us AS at, IFNULL(pace, 0) AS pace, pace IS NULL AS unseen, 0 AS up, 0 AS listed {_THERE}
      UNION ALL SELECT until_us, -IFNULL(pace, 0), -(pace IS NULL), 0, 0 {_THERE}
      UNION ALL SELECT MAX(from_us, :start), 0, 0, up, 1 {_LISTED}
      UNION ALL SELECT MIN(until_us, :end), 0, 0, -up, -1 {_LISTED}
    ) GROUP BY at
  ) WINDOW w AS (ORDER BY at)
)
"""  # noqa: S608 - of texts in this file
"""`turned`: the time until then, each part of it divided by the pace of all answers: an answer's share is its own pace
times what that grows by."""
_SPENT: Final = """
SELECT TOTAL(us) FILTER (WHERE pace > 0),
    TOTAL(us) FILTER (WHERE pace = 0 AND (unseen > 0 OR (listed > 0 AND up = 0))),
    TOTAL(us) FILTER (WHERE pace = 0 AND unseen = 0 AND up > 0) FROM engine_moments
"""
_GROUPS: Final = f"""
SELECT CASE WHEN pace IS NULL THEN '{UNKNOWN}' ELSE '{ANSWERS}' END,
    tenant, subject, key, model, SUM(answers), SUM(estimated),
    TOTAL(pace * ((SELECT turned FROM engine_moments WHERE at = until_us)
    - (SELECT turned FROM engine_moments WHERE at = from_us))) {_THERE} GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608 - as above
_GROUPED: Final = ("state", "tenant", "subject", "key", "model", "answers", "estimated")
_PRICE: Final = """
SELECT hour_nanos FROM engine_listings WHERE pool = :pool AND from_us < :end
ORDER BY engine = :engine DESC, from_us DESC
"""
_CLOSE: Final = f"""
INSERT INTO engine_days SELECT {_NAMES} FROM engine_open WHERE period < ? ON CONFLICT DO UPDATE SET
    {", ".join(f"{name} = {name} + excluded.{name}" for name in _AMOUNTS)}
"""  # noqa: S608 - as above


class EngineTimeTable:
    """Used within the transactions of others."""

    def __init__(self, database: Database) -> None:
        self._connection: sqlite3.Connection = database.connection
        self._connection.executescript(_TABLES)
        self.lives: Final = EngineListings(self._read_lives())
        self._open_from = 0
        """The first period that isn't in the sums of its day."""
        self._stale: set[tuple[int, str, str]] = set()
        """Periods of engines that have to be divided (again)."""
        self._is_read = False

    def start_again(self) -> None:
        """A transaction was undone."""
        self._is_read = False

    def add_lives(self, lives: Sequence[EngineListing]) -> None:
        """Keep the lives that are new or longer."""
        self._read()
        rows = [tuple(getattr(life, name) for name in life.__struct_fields__) for life in lives]
        self._connection.executemany("INSERT OR REPLACE INTO engine_listings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._note_lives(lives)

    def add_answers(self, ends: Iterable[ResponseCompleted], now_us: int) -> None:
        """Keep the work for requests of engines that have a price. Each request comes once."""
        self._read()
        now = now_us // PERIOD_US
        rows = [row for end in ends for answer in works_of_end(end) for row in self._work_rows(end, answer, now)]
        self._connection.executemany(f"INSERT INTO engine_work VALUES ({', '.join('?' * 12)})", rows)  # noqa: S608
        self._stale.update((cast("int", row[2]), str(row[0]), str(row[1])) for row in rows)

    def close_periods(self, now_us: int) -> None:
        """Add the time of periods to the sums of their days, once no end of a request is expected for them."""
        self._read()
        # Engines may turn out to have been there while no snapshot came.
        now = min(now_us, self.lives.heard_us) // PERIOD_US
        before = now - _OPEN_PERIODS
        self._divide_stale(now)
        if before <= self._open_from:
            return
        run = self._connection.execute
        run(_CLOSE, (before,))
        run("DELETE FROM engine_open WHERE period < ?", (before,))
        run("DELETE FROM engine_work WHERE period < ?", (before,))
        run("DELETE FROM engine_listings WHERE until_us < ?", (before * PERIOD_US - LONGEST_GAP_US,))
        run("INSERT OR REPLACE INTO progress VALUES (?, ?)", (_OPEN, str(before)))
        self._open_from = before

    def delete_before(self, day: str) -> None:
        self._connection.execute("DELETE FROM engine_days WHERE day < ?", (day,))

    def sum_engine_time(self, query: EngineTimeQuery, at_most: int) -> EngineTimeAnswer:
        """The rows of an answer. Raises ValueError for a `by` that no row has."""
        by = [name for name in KEYS if name in query.by]
        strange = set(query.by) - set(KEYS)
        if strange:
            raise ValueError(f"rows have {', '.join(KEYS)}; not {', '.join(sorted(strange))}")
        self._read()
        self._divide_stale(None)
        days = {"day >= ?": query.since, "day <= ?": query.until}
        clients = {"tenant = ?": query.tenant, "key = ?": query.key, "model = ?": query.model}
        if any(value is not None for value in clients.values()):
            clients["state = ?"] = ANSWERS
        [total] = self._select("IFNULL(SUM(time_us), 0), IFNULL(SUM(time_nanos), 0)", days, "")
        names = ["state", *by, *_AMOUNTS]
        columns = ", ".join(["state", *by, *(f"SUM({name})" for name in _AMOUNTS)])
        rest = (
            f"GROUP BY {', '.join(['state', *by])} ORDER BY state <> '{ANSWERS}', SUM(time_us) DESC LIMIT {at_most + 1}"
        )
        found = self._select(columns, days | clients, rest)
        rows = [EngineTimeSum(**dict(zip(names, row, strict=True))) for row in found]
        return EngineTimeAnswer(rows[:at_most], len(rows) > at_most, *total)

    def _work_rows(self, end: ResponseCompleted, answer: AnswerWork, now: int) -> list[Row]:
        identity, prices = end.identity or _ANONYMOUS, self.lives.prices
        priced = [(each, prices[each.pool]) for each in answer.stretches if each.pool in prices]
        found: list[Row] = [
            (each.pool, each.engine, period, from_us, until_us, each.find_pace(price))
            for each, price in priced
            for period, from_us, until_us in each.split_periods()
            if self._open_from <= period <= now + _DAY_PERIODS
        ]
        if priced and not found:
            # It comes too late, or from a clock that is wrong: it is counted without a time.
            stretch, _ = priced[0]
            found = [(stretch.pool, stretch.engine, now, now * PERIOD_US, now * PERIOD_US, None)]
        client = identity.tenant, identity.subject, identity.key, answer.model
        # It counts where it ended: an engine may have had no price where it began.
        last = len(found) - 1
        return [
            (*row, *client, int(place == last), int(place == last and answer.estimated))
            for place, row in enumerate(found)
        ]

    def _select(self, columns: str, wanted: Mapping[str, str | None], rest: str) -> list[Any]:
        given = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        every = f"SELECT {_NAMES} FROM engine_days UNION ALL SELECT {_NAMES} FROM engine_open"  # noqa: S608
        statement = f"SELECT {columns} FROM ({every}) {where} {rest}"  # noqa: S608 - of names in this file
        return self._connection.execute(statement, list(given.values())).fetchall()

    def _divide_stale(self, before: int | None) -> None:
        """Divide the time of the periods, again where it was, that have changed. None: those to come, too."""
        for each in [each for each in self._stale if before is None or each[0] < before]:
            self._divide(*each)
            self._stale.discard(each)

    def _divide(self, period: int, pool: str, engine: str) -> None:
        run = self._connection.execute
        start = period * PERIOD_US
        named = {"period": period, "pool": pool, "engine": engine, "start": start, "end": start + PERIOD_US}
        run("DELETE FROM engine_open WHERE period = :period AND pool = :pool AND engine = :engine", named)
        price = run(_PRICE, named).fetchone()
        if price is None or period < self._open_from:
            return
        run("DELETE FROM engine_moments")
        run(_MOMENTS, named)
        [spent] = run(_SPENT).fetchall()
        groups = [(EngineTimeSum(**dict(zip(_GROUPED, row, strict=True))), part) for *row, part in run(_GROUPS, named)]
        rows = divide(Spent(*map(int, spent)), groups, *price)
        where = period, day_of(start // 1000), pool, engine
        self._connection.executemany(
            f"INSERT INTO engine_open VALUES ({', '.join('?' * 13)})",  # noqa: S608
            [(*where, *_COLUMNS_OF(row)) for row in rows],
        )

    def _read(self) -> None:
        if self._is_read:
            return
        self._is_read = True
        select = self._connection.execute
        [(opened,)] = select("SELECT MAX(CAST(value AS INTEGER)) FROM progress WHERE name = ?", (_OPEN,)).fetchall()
        self._open_from = opened or 0
        self._stale.update(select("SELECT DISTINCT period, pool, engine FROM engine_work").fetchall())
        self._note_lives(self._read_lives())

    def _read_lives(self) -> list[EngineListing]:
        rows = self._connection.execute("SELECT * FROM engine_listings ORDER BY from_us").fetchall()
        return [EngineListing(*row) for row in rows]

    def _note_lives(self, lives: Iterable[EngineListing]) -> None:
        for life in lives:
            first = max(self._open_from, life.from_us // PERIOD_US)
            periods = range(first, life.until_us // PERIOD_US + 1)
            self._stale.update((period, life.pool, life.engine) for period in periods)
