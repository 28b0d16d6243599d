"""Keys by which events and records are known when they come again.

A key begins with the time, so that new ones stand together at the end of an index: at random places, each would
rewrite a page of its own. The same event has the same time whenever it comes. Up to version 4 of the database, keys had
no time.
"""

import sqlite3
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Final, Literal, TypeVar

from isal import isal_zlib

from pointsman_recorder.domain.numbers import MOST

_AT_ONCE: Final = 32
"""Rows of one statement, which spares a call and two turns of the interpreter's lock for each row."""
_TIME_BYTES: Final = 6
_LAST: Final = (1 << (8 * _TIME_BYTES)) - 1

_crc32: Callable[[bytes], int] = isal_zlib.crc32  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped
"""As zlib's, in a fifth of its time."""
E = TypeVar("E")
Row = tuple[bytes | str | int | None, ...]


def key_of(at_ms: int, name: str, body: bytes = b"") -> bytes:
    """16 bytes that stand for a name at a time, and its body: a process that reuses an earlier one's name numbers its
    events anew. A checksum is enough to tell the bodies of one name at one time apart."""
    time = (at_ms if 0 <= at_ms <= _LAST else min(max(at_ms, 0), _LAST)).to_bytes(_TIME_BYTES, "big")
    named = f"{_crc32(body)}:{len(body)}:{name}"
    return time + blake2b(named.encode(), digest_size=10).digest()


def time_of(key: bytes) -> int:
    """The greatest time that a key may stand for, unix milliseconds; 0 for none."""
    time = int.from_bytes(key[:_TIME_BYTES], "big")
    return time if time < _LAST else MOST


def earlier_key_of(name: str, body: bytes = b"") -> bytes:
    """The key of a name and its body up to version 4."""
    return blake2b(body, key=blake2b(name.encode()).digest(), digest_size=16).digest()


def present(
    connection: sqlite3.Connection, table: Literal["events", "usage_counted"], keys: Sequence[bytes]
) -> set[bytes]:
    """Those of the keys that the table has."""
    found: set[bytes] = set()
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        places = ", ".join("?" * len(some))
        rows = connection.execute(f"SELECT key FROM {table} WHERE key IN ({places})", some)  # noqa: S608 - of this file
        found.update(key for (key,) in rows)
    return found


def inserted(connection: sqlite3.Connection, into: str, entries: Sequence[E], rows: Sequence[Row]) -> Sequence[E]:
    """Insert a row for each entry unless its key is there; the entries that were new. Usually all are; only where some
    aren't are they inserted one by one. `into`: the table and its columns."""
    if not rows:
        return entries
    row = f"({', '.join('?' * len(rows[0]))})"
    statement = f"INSERT OR IGNORE INTO {into} VALUES {row}"  # noqa: S608 - of names in this service
    several = statement + f", {row}" * (_AT_ONCE - 1)
    cursor = connection.cursor()
    cursor.execute("SAVEPOINT inserting")
    count = 0
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        insert = several if len(some) == _AT_ONCE else statement + f", {row}" * (len(some) - 1)
        count += cursor.execute(insert, [*chain.from_iterable(some)]).rowcount
    new = entries
    if count != len(rows):
        cursor.execute("ROLLBACK TO inserting")
        new = [entry for entry, row in zip(entries, rows, strict=True) if cursor.execute(statement, row).rowcount == 1]
    cursor.execute("RELEASE inserting")
    return new
