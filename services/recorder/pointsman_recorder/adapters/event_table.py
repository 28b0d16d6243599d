"""The events in the database: each once, found by request, forgotten by age and by room."""

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from pointsman_contracts.story import KeptEvent
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_text import body_of, compressed
from pointsman_recorder.domain.entry import RecordedEvent

_ADD: Final = "INSERT OR IGNORE INTO events (key, request_id, at_ms, type, body) VALUES (?, ?, ?, ?, ?)"
_AT_ONCE: Final = 2000
"""Events that are deleted in one transaction."""


class EventTable:
    """Used within the caller's transactions, except for `forget`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection = database.connection

    def add(self, entries: Sequence[RecordedEvent]) -> list[RecordedEvent]:
        """Keep events; those that weren't there yet."""
        cursor = self._connection.cursor()
        new: list[RecordedEvent] = []
        for entry in entries:
            key, body = digest(entry.key, entry.body), compressed(entry.body)
            if cursor.execute(_ADD, (key, entry.request_id, entry.at_ms, entry.type, body)).rowcount == 1:
                new.append(entry)
        return new

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


def digest(key: str, body: bytes = b"") -> bytes:
    """16 bytes that stand for a key and its body: a process that reuses an earlier one's name
    numbers its events anew."""
    return blake2b(body, key=blake2b(key.encode()).digest(), digest_size=16).digest()
