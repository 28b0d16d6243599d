"""The recorder's database: one SQLite file in a folder that one process has for itself."""

import fcntl
import sqlite3
import time
from pathlib import Path
from typing import Final, TextIO

from pointsman_recorder.domain.entry import JUDGED

FILE: Final = "recorder.db"
_VERSION: Final = 5
"""Version 1 has no bodies compressed with the dictionary of `event_text`, and is read unchanged. Sums up to version 2
have no keys, and costs in dollars. Up to version 3 there is no regret. Up to version 4, each event has its body in its
row, and each record owed to the ledger a row; keys have no time."""
_SUMS_WITH_KEYS: Final = 3
_REGRET_SUMS: Final = 4
_EARLIER_KEYS: Final = "earlier-keys-until-ms"
_REGRET: Final = f"""
CREATE TABLE regret_sums (
    judge TEXT, pool TEXT, hour TEXT, profile TEXT, reason TEXT,
    requests INTEGER, judged INTEGER, regret_us INTEGER, cost_us INTEGER,
    PRIMARY KEY (judge, pool, hour, profile, reason)
) WITHOUT ROWID;
CREATE INDEX judgements ON events (at_ms) WHERE type = '{JUDGED}';
"""
_BLOCKS: Final = """
CREATE TABLE blocks (id INTEGER PRIMARY KEY, bodies BLOB NOT NULL);
CREATE TABLE usage_owed (id INTEGER PRIMARY KEY, records BLOB NOT NULL);
"""
"""`events.body` is the number of a block times the most bodies of a block, plus the place in it. `usage_owed.records`
are lines."""
_CLOCKS_MS: Final = 86_400_000
"""How far the clock of an event's publisher may be ahead."""
_SUMS: Final = """
CREATE TABLE usage_sums (
    day TEXT, tenant TEXT, subject TEXT, key TEXT, model TEXT,
    requests INTEGER, failed INTEGER, prompt_tokens INTEGER, cached_tokens INTEGER, completion_tokens INTEGER,
    reasoning_tokens INTEGER, estimated INTEGER, cost_nanos INTEGER, unpriced INTEGER,
    PRIMARY KEY (day, tenant, subject, key, model)
) WITHOUT ROWID;
"""
_GIVE_KEYS: Final = (
    "ALTER TABLE usage_sums RENAME TO sums_before;"  # noqa: S608 - of texts in this file
    + _SUMS
    + """
INSERT INTO usage_sums SELECT day, tenant, subject, '', model, requests, failed, prompt_tokens, cached_tokens,
    completion_tokens, reasoning_tokens, estimated, CAST(ROUND(cost * 1000000000) AS INTEGER), unpriced
    FROM sums_before;
DROP TABLE sums_before;
"""
)
_SCHEMA: Final = f"""{_SUMS}CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    request_id TEXT,
    at_ms INTEGER NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX events_of_request ON events (request_id) WHERE request_id IS NOT NULL;
CREATE TABLE usage_counted (key BLOB PRIMARY KEY, at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE progress (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{_REGRET}{_BLOCKS}"""
_TRACES: Final = """
CREATE TABLE IF NOT EXISTS traces (
    trace TEXT, request_id TEXT, at_ms INTEGER NOT NULL, PRIMARY KEY (trace, request_id)
) WITHOUT ROWID;
"""
"""Beside the versions above, which neither need nor disturb it."""
_GAPS: Final = """
CREATE TABLE IF NOT EXISTS event_series (series TEXT PRIMARY KEY, number INTEGER, at_ms INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event_gaps (
    series TEXT, first INTEGER, last INTEGER, from_ms INTEGER, to_ms INTEGER, told INTEGER, PRIMARY KEY (series, first)
) WITHOUT ROWID;
"""
"""As above."""
_ATTAINMENT: Final = """
CREATE TABLE IF NOT EXISTS attainment_sums (
    minute INTEGER, service_class TEXT, tenant TEXT, model TEXT,
    kept INTEGER, missed INTEGER, unknown INTEGER, refused INTEGER, tokens INTEGER, promised INTEGER,
    promised_us INTEGER, predicted INTEGER, predicted_us INTEGER, got_us INTEGER,
    PRIMARY KEY (minute, service_class, tenant, model)
) WITHOUT ROWID;
"""
"""As above. `minute`: minutes since 1970."""


class Database:
    """The file while it is open. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens or makes it. Raises OSError when the folder can't be used, another process uses it, or the file is a
        later version's."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder / "lock")
        self.connection = sqlite3.connect(folder / FILE, check_same_thread=False, isolation_level=None)
        # Acknowledged events must survive a loss of power.
        self.connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = 2;")
        [(version,)] = self.connection.execute("PRAGMA user_version").fetchall()
        if version > _VERSION:
            self.close()
            raise OSError(f"{folder / FILE} was written by a later version of the recorder; run that one")
        self.empty = version == 0
        """It was made just now."""
        if self.empty:
            self.connection.executescript(f"BEGIN; {_SCHEMA} {_TRACES} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version < _VERSION:
            self._renew(version)
        self.connection.executescript(_GAPS + _ATTAINMENT)
        self.earlier_keys_until_ms = self._earlier_keys()
        """No event after this time has a key of version 4."""

    def _renew(self, version: int) -> None:
        """Bring the tables to the latest version, or leave them all as they are."""
        keys = _GIVE_KEYS if version < _SUMS_WITH_KEYS else ""
        regret = _REGRET if version < _REGRET_SUMS else ""
        until_ms = time.time_ns() // 1_000_000 + _CLOCKS_MS
        self.connection.executescript(
            f"BEGIN; {keys} {regret} {_TRACES} {_BLOCKS}"  # noqa: S608 - of texts and a number in this file
            "INSERT INTO usage_owed (records) SELECT record FROM usage_unwritten; DROP TABLE usage_unwritten;"
            f"INSERT OR REPLACE INTO progress VALUES ('{_EARLIER_KEYS}', '{until_ms}');"
            f"PRAGMA user_version = {_VERSION}; COMMIT;"
        )

    def _earlier_keys(self) -> int:
        rows = self.connection.execute("SELECT value FROM progress WHERE name = ?", (_EARLIER_KEYS,)).fetchall()
        return int(rows[0][0]) if rows else -1

    @property
    def size(self) -> int:
        """Bytes in use; the space of deleted rows is reused."""
        [(pages, free, size)] = self.connection.execute(
            "SELECT page_count, freelist_count, page_size "
            "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        ).fetchall()
        return int((pages - free) * size)

    def close(self) -> None:
        """Let the folder go."""
        self.connection.close()
        self._lock.close()


def _locked(path: Path) -> TextIO:
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise OSError(f"{path.parent} is another recorder's; give this one a folder and a name of its own") from None
    return lock
