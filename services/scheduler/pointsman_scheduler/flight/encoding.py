"""Notes as bytes, soon after they were made.

Kept until a thread has time, requests and their decisions cost several times as much as their records: they leave the
processor's cache, and the garbage collector looks at them again and again.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from pointsman_flight.records import Record, StateChecked
from pointsman_flight.salt import Salt
from pointsman_flight.writer import Records
from pointsman_scheduler.flight.writing import Note, RecordMaker

TOO_SLOW: Final = "the disk was too slow"
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
        """How many of the records that wait are inputs."""

    def put(self, notes: Sequence[Note], most: int) -> tuple[int, str]:
        """Append the records of these notes, all of inputs, while fewer than `most` bytes wait. Returns how many were
        appended, and why no more were; nothing is kept of a note that can't be recorded."""
        maker, encode, part = self._maker, self._encode, self._part
        makers, blocks, content = maker.makers, maker.blocks, part.content
        for done, note in enumerate(notes):
            start = len(content)
            if self._full_bytes + start >= most:
                return done, TOO_SLOW
            try:
                record = makers[note[0]](*note[1:])
                if maker.defined:
                    self._define(maker.taken())
                    start = len(content)
                encode(record, content, -1)
                if blocks:
                    part.blocks.extend(_places(content, start, blocks))
                    blocks.clear()
            except Exception as error:  # noqa: BLE001 - no request may fail for it
                del content[start:]
                blocks.clear()
                return done, f"an input can't be recorded: {error}"
            part.count += 1
            self.inputs += 1
            if len(content) > _PART_BYTES:
                self._full.append(part)
                self._full_bytes += len(content)
                self._part = part = _Part()
                content = part.content
        return len(notes), ""

    def check(self, figures: tuple[float, ...]) -> None:
        """Append the state's figures."""
        self._define((StateChecked(figures),))

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
            head = _head(len(each))
            begin = content.index(head + each, start) + len(head)
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
