"""Notes as bytes, soon after they were made.

Kept until a thread has time, requests and their decisions cost several times as much as their records: they leave the
processor's cache, and the garbage collector looks at them again and again.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from pointsman_flight.reader import NOT_INPUTS
from pointsman_flight.records import Record
from pointsman_flight.salt import Salt
from pointsman_flight.writer import Records
from pointsman_scheduler.flight.writing import Note, RecordMaker

_PART_BYTES: Final = 2**20
"""Records beyond this go into another part."""


class _Part:
    """Some records, one after the other. `blocks`: where hashes are that have their own names yet: begin, end, begin
    and so on."""

    __slots__ = ("blocks", "content", "count")

    def __init__(self) -> None:
        self.content: Final = bytearray()
        self.count = 0
        self.blocks: Final[list[int]] = []

    def renamed(self, salt: Salt) -> Records:
        ends = self.blocks
        places = [slice(begin, end) for begin, end in zip(ends[::2], ends[1::2], strict=True)]
        content = self.content
        renamed = salt.packed(b"".join([content[place] for place in places]))
        done = 0
        for place in places:
            size = place.stop - place.start
            content[place] = renamed[done : done + size]
            done += size
        return Records(self.count, content)


class Encoded:
    """Records as bytes."""

    __slots__ = ("_parts", "inputs")

    def __init__(self, parts: Sequence[_Part], inputs: int) -> None:
        self._parts: Final = parts
        self.inputs: Final = inputs
        """How many of them are inputs."""

    def renamed(self, salt: Salt) -> list[Records]:
        """The records with block hashes renamed: all of a part at once, since a call for each would cost more than the
        renaming. Call it once."""
        return [part.renamed(salt) for part in self._parts]


NOTHING: Final = Encoded((), 0)


class NoteEncoder:
    """Encodes the notes of one log."""

    def __init__(self, maker: RecordMaker) -> None:
        self._maker: Final = maker
        self._encode: Final = msgspec.msgpack.Encoder().encode_into
        self._full: list[_Part] = []
        self._full_bytes = 0
        self._part = _Part()
        self.inputs = 0

    @property
    def bytes(self) -> int:
        """What waits."""
        return self._full_bytes + len(self._part.content)

    def put(self, note: Note) -> None:
        """Append the record of this note. Whatever it raises, nothing of the note is kept."""
        part = self._part
        content = part.content
        start, places, maker = len(content), len(part.blocks), self._maker
        try:
            record = maker.record(note)
            if maker.defined:
                self._define(maker.taken())
                start = len(content)
            self._encode(record, content, -1)
            if maker.blocks:
                part.blocks.extend(_places(content, start, maker.blocks))
        except Exception:
            del content[start:], part.blocks[places:]
            raise
        finally:
            maker.blocks.clear()
        part.count += 1
        self.inputs += not isinstance(record, NOT_INPUTS)
        if len(content) > _PART_BYTES:
            self._full.append(part)
            self._full_bytes += len(content)
            self._part = _Part()

    def take(self) -> Encoded:
        """The records since the last call."""
        parts = [*self._full, self._part] if self._part.count else self._full
        encoded = Encoded(parts, self.inputs)
        self._full, self._full_bytes, self._part, self.inputs = [], 0, _Part(), 0
        return encoded

    def _define(self, defined: Sequence[Record]) -> None:
        for record in defined:
            self._encode(record, self._part.content, -1)
            self._part.count += 1


def _places(content: bytearray, start: int, blocks: Sequence[bytes]) -> list[int]:
    """Where in a record these blocks are: those of bytes, whose beginnings no text of the same record can have, since
    hashes aren't UTF-8."""
    places: list[int] = []
    for each in blocks:
        if each:
            begin = content.index(each, content.index(_head(len(each)) + each, start) + len(_head(len(each))))
            start = begin + len(each)
            places += (begin, start)
    return places


def _head(size: int) -> bytes:
    """Of so many bytes in msgpack."""
    if size < 2**8:
        return b"\xc4" + size.to_bytes(1, "big")
    if size < 2**16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")
