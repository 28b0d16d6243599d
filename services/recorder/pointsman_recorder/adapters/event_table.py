"""The events in the database: each once, found by request, forgotten by age and by room."""

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

from pointsman_contracts.story import KeptEvent
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_text import body_of, compressed
from pointsman_recorder.domain.entry import JUDGED, RecordedEvent

_ADD: Final = "INSERT OR IGNORE INTO events (key, request_id, at_ms, type, body) VALUES (?, ?, ?, ?, ?)"
_ADD_TRACE: Final = "INSERT OR IGNORE INTO traces (trace, request_id, at_ms) VALUES (?, ?, ?)"
_OF_TRACE: Final = 20
"""Requests of one trace that are looked for."""
_AT_ONCE: Final = 2000
"""Events that are deleted in one transaction."""
_JUDGEMENTS: Final = 500
"""Events that are searched for a request: those of several seconds of a busy gateway."""


class EventTable:
    """Used within the caller's transactions, except for `forget`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection = database.connection

    def add(self, entries: Sequence[RecordedEvent]) -> Sequence[RecordedEvent]:
        """Keep events; those that weren't there yet."""
        rows = [
            (digest(name, body), request_id, at_ms, kind, compressed(body))
            for name, request_id, at_ms, kind, body, *_ in entries
        ]
        # Only sampled requests have one.
        traced = [(entry.trace, entry.request_id, entry.at_ms) for entry in entries if entry.trace and entry.request_id]
        if traced:
            self._connection.executemany(_ADD_TRACE, traced)
        return inserted(self._connection, _ADD, entries, rows)

    def of_request(self, request_id: str, room: int) -> tuple[list[KeptEvent], bool]:
        """The latest events of a request that fit into `room` bytes, in the order of the stream; whether earlier ones
        exist."""
        rows: Iterable[tuple[str, bytes]] = self._connection.execute(
            "SELECT type, body FROM events WHERE request_id = ? ORDER BY id DESC", (request_id,)
        )
        found: list[KeptEvent] = []
        for kind, body in rows:
            text = body_of(body).decode()
            room -= len(text)
            if room < 0:
                return found[::-1], True
            found.append(KeptEvent(type=kind, body=text))
        return found[::-1], False

    def judgements(self, after_ms: int, request_id: str) -> list[bytes]:
        """Bodies of the first judgements since a time that may be of this request: they name it."""
        rows: Iterable[tuple[bytes]] = self._connection.execute(
            f"SELECT body FROM events WHERE type = '{JUDGED}' AND at_ms >= ? ORDER BY at_ms LIMIT ?",  # noqa: S608 - of names in this service
            (after_ms, _JUDGEMENTS),
        )
        needle = request_id.encode()
        return [body for (kept,) in rows if needle in (body := body_of(kept))]

    def of_trace(self, trace: str, room: int) -> tuple[list[KeptEvent], bool]:
        """As `of_request`, of the first requests of a trace."""
        rows: Iterable[tuple[str]] = self._connection.execute(
            "SELECT request_id FROM traces WHERE trace = ? ORDER BY at_ms LIMIT ?", (trace, _OF_TRACE)
        )
        found: list[KeptEvent] = []
        more = False
        for (request_id,) in list(rows):
            events, cut = self.of_request(request_id, room)
            found += events
            room -= sum(len(event.body) for event in events)
            more |= cut
        return found, more

    def forget_traces(self, before_ms: int) -> None:
        """Delete what is known of traces from before a time."""
        self._connection.execute("DELETE FROM traces WHERE at_ms < ?", (before_ms,))

    def forget(self, before_ms: int, bytes_kept: int) -> int:
        """Delete the oldest events: those from before a time, and as many as are too many; how many went, at most
        `_AT_ONCE`."""
        oldest = "SELECT id FROM events ORDER BY id LIMIT ?"
        if self._database.size > bytes_kept:
            done = self._connection.execute(f"DELETE FROM events WHERE id IN ({oldest})", (_AT_ONCE,))  # noqa: S608 - of this file
        else:
            done = self._connection.execute(
                f"DELETE FROM events WHERE id IN ({oldest}) AND at_ms < ?",  # noqa: S608 - of this file
                (_AT_ONCE, before_ms),
            )
        return done.rowcount


E = TypeVar("E")
_Row = tuple[bytes | str | int | None, ...]


def inserted(connection: sqlite3.Connection, statement: str, entries: Sequence[E], rows: Sequence[_Row]) -> Sequence[E]:
    """Insert a row for each entry by an `INSERT OR IGNORE`; the entries that were new. Usually all are, and one call
    inserts them in a third of the time; only where it ignores some are they inserted one by one."""
    cursor = connection.cursor()
    cursor.execute("SAVEPOINT inserting")
    whole = cursor.executemany(statement, rows).rowcount == len(rows)
    if whole or not rows:
        cursor.execute("RELEASE inserting")
        return entries
    cursor.execute("ROLLBACK TO inserting")
    new = [entry for entry, row in zip(entries, rows, strict=True) if cursor.execute(statement, row).rowcount == 1]
    cursor.execute("RELEASE inserting")
    return new


def digest(key: str, body: bytes = b"") -> bytes:
    """16 bytes that stand for a key and its body: a process that reuses an earlier one's name
    numbers its events anew."""
    return blake2b(body, key=blake2b(key.encode()).digest(), digest_size=16).digest()
