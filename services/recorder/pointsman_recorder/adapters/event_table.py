"""The events in the database: each once, found by request, forgotten by age and by room."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

from pointsman_contracts.story import KeptEvent
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_text import body_of, packed, unpacked
from pointsman_recorder.adapters.keys import Row, earlier_key_of, inserted, key_of, present
from pointsman_recorder.domain.entry import JUDGED, RecordedEvent

_INTO: Final = "events (key, request_id, at_ms, type, body)"
_BLOCK: Final = 64
"""Bodies that are compressed together, at most. A reader of one decompresses them all."""
_BLOCK_BYTES: Final = 2**17
"""A body that would make more of them begins a block."""
_ADD_TRACE: Final = "INSERT OR IGNORE INTO traces (trace, request_id, at_ms) VALUES (?, ?, ?)"
_OF_TRACE: Final = 20
"""Requests of one trace that are looked for."""
_AT_ONCE: Final = 2000
"""Events that are deleted in one transaction."""
_JUDGEMENTS: Final = 500
"""Events that are searched for a request: those of several seconds of a busy gateway."""


class ReadPlace(NamedTuple):
    """How far a stream was read."""

    stream: str
    """When it was made: one that was made anew has other numbers."""
    sequence: int


class EventTable:
    """Used within the caller's transactions, except for `forget`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection = database.connection

    def add_entries(self, entries: Sequence[RecordedEvent]) -> Sequence[RecordedEvent]:
        """Keep events; those that weren't there yet."""
        entries = self._unknown(entries)
        if not entries:
            return entries
        [(last,)] = self._connection.execute("SELECT IFNULL(MAX(id), 0) FROM blocks").fetchall()
        blocks = dict(enumerate(_blocks(entries), last + 1))
        rows: list[Row] = [
            (key_of(each.at_ms, each.key, each.body), each.request_id, each.at_ms, each.type, place)
            for number, block in blocks.items()
            for place, each in enumerate(block, number * _BLOCK)
        ]
        # Only sampled requests have one.
        traced = [(entry.trace, entry.request_id, entry.at_ms) for entry in entries if entry.trace and entry.request_id]
        if traced:
            self._connection.executemany(_ADD_TRACE, traced)
        new = inserted(self._connection, _INTO, range(len(rows)), rows)
        if len(new) != len(entries):
            needed = {cast("int", rows[index][-1]) // _BLOCK for index in new}
            blocks = {number: block for number, block in blocks.items() if number in needed}
            entries = [entries[index] for index in new]
        kept = [(number, packed([each.body for each in block])) for number, block in blocks.items()]
        self._connection.executemany("INSERT INTO blocks (id, bodies) VALUES (?, ?)", kept)
        return entries

    @property
    def place(self) -> ReadPlace:
        """See `EventStore.read_place`."""
        rows: dict[str, str] = dict(self._connection.execute("SELECT name, value FROM progress").fetchall())
        return ReadPlace(rows.get("events", ""), int(rows.get("event", "0")))

    def move_place(self, place: ReadPlace) -> None:
        """Remember how far the stream was read; an event that comes again moves nothing back."""
        before = self.place
        if place.stream != before.stream or place.sequence > before.sequence:
            rows = [("events", place.stream), ("event", str(place.sequence))]
            self._connection.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?)", rows)

    def _unknown(self, entries: Sequence[RecordedEvent]) -> Sequence[RecordedEvent]:
        """Without the events that an earlier version kept."""
        until = self._database.earlier_keys_until_ms
        if until < 0 or not any(entry.at_ms <= until for entry in entries):
            return entries
        keys = [earlier_key_of(entry.key, entry.body) for entry in entries]
        known = present(self._connection, "events", keys)
        return [entry for entry, key in zip(entries, keys, strict=True) if key not in known] if known else entries

    def of_request(self, request_id: str, room: int) -> tuple[list[KeptEvent], bool]:
        """The latest events of a request that fit into `room` bytes, in the order of the stream; whether earlier ones
        exist."""
        rows: Iterable[tuple[str, bytes | int]] = self._connection.execute(
            "SELECT type, body FROM events WHERE request_id = ? ORDER BY id DESC", (request_id,)
        )
        bodies = _Bodies(self._connection)
        found: list[KeptEvent] = []
        for kind, kept in rows:
            text = bodies.of(kept).decode()
            room -= len(text)
            if room < 0:
                return found[::-1], True
            found.append(KeptEvent(type=kind, body=text))
        return found[::-1], False

    def find_judgements(self, after_ms: int, request_id: str) -> list[bytes]:
        """Bodies of the first judgements since a time that may be of this request: they name it."""
        rows: Iterable[tuple[bytes | int]] = self._connection.execute(
            f"SELECT body FROM events WHERE type = '{JUDGED}' AND at_ms >= ? ORDER BY at_ms LIMIT ?",  # noqa: S608 - of names in this service
            (after_ms, _JUDGEMENTS),
        )
        bodies = _Bodies(self._connection)
        needle = request_id.encode()
        return [body for (kept,) in rows if needle in (body := bodies.of(kept))]

    def of_trace(self, trace: str, room: int) -> tuple[list[KeptEvent], bool]:
        """Like `of_request`, of the first requests of a trace."""
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

    def delete_oldest(self, before_ms: int, bytes_kept: int) -> int:
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
        self._forget_blocks()
        return done.rowcount

    def _forget_blocks(self) -> None:
        """Delete the blocks before the oldest event's: blocks are numbered in the order of events."""
        oldest: list[tuple[bytes | int]] = self._connection.execute(
            "SELECT body FROM events ORDER BY id LIMIT 1"
        ).fetchall()
        if not oldest:
            self._connection.execute("DELETE FROM blocks")
        elif isinstance(place := oldest[0][0], int):
            self._connection.execute("DELETE FROM blocks WHERE id < ?", (place // _BLOCK,))


class _Bodies:
    """Bodies by what `events` has for them: a place in a block, or the body itself where an earlier version kept it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._number = 0
        self._block: list[bytes] = []
        """The block that was read last: events that are asked for together often share it."""

    def of(self, kept: bytes | int) -> bytes:
        """One body."""
        if isinstance(kept, bytes):
            return body_of(kept)
        number, place = divmod(kept, _BLOCK)
        if number != self._number:
            [(block,)] = self._connection.execute("SELECT bodies FROM blocks WHERE id = ?", (number,)).fetchall()
            self._number, self._block = number, unpacked(block)
        return self._block[place]


def _blocks(entries: Sequence[RecordedEvent]) -> list[Sequence[RecordedEvent]]:
    equal = [entries[start : start + _BLOCK] for start in range(0, len(entries), _BLOCK)]
    if all(sum([len(entry.body) for entry in block]) <= _BLOCK_BYTES for block in equal):
        return equal
    blocks: list[list[RecordedEvent]] = [[]]
    room = _BLOCK_BYTES
    for entry in entries:
        room -= len(entry.body)
        if len(blocks[-1]) == _BLOCK or (room < 0 and blocks[-1]):
            blocks.append([])
            room = _BLOCK_BYTES - len(entry.body)
        blocks[-1].append(entry)
    return [*blocks]
