"""Reads segments: finds them, checks every byte, and yields their records with the number of each input."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from pointsman_flight import records
from pointsman_flight.earlier_records import EARLIER, today
from pointsman_flight.frames import FORMAT, MAGIC, NESTED, Frame, FrameDamagedError, Torn, frames
from pointsman_flight.hashes import HashesTaken
from pointsman_flight.header import Header
from pointsman_flight.writer import SUFFIX

AnyRecord: TypeAlias = (
    records.PolicyDefined
    | records.PoliciesUsed
    | records.BlocksMeasured
    | records.WorkerRegistered
    | records.WorkerRemoved
    | records.LoadReported
    | records.Swept
    | records.Decided
    | records.BindAsked
    | records.LookedAtWaiting
    | records.AnswerStarted
    | records.AttemptLost
    | records.RequestCompleted
    | records.AnswerAdded
    | records.PeerChanged
    | records.PeerWaiting
    | records.WaitEnded
    | records.KvTold
    | records.IndexDumped
    | records.IndexLoaded
    | records.StateChecked
    | records.SnapshotPart
    | records.SegmentEnded
)
"""Every kind of record, as a reader gives it."""

NOT_INPUTS: Final = (records.PolicyDefined, records.StateChecked, records.SnapshotPart, records.SegmentEnded)
"""Records that don't count as inputs."""


class LogError(Exception):
    """The log can't be read; the text is for the person who gave it."""


class NoLogError(LogError):
    """No log is at the path."""


class LogDamagedError(LogError):
    """Bytes of a segment were changed or removed."""

    def __init__(self, segment: Path, offset: int, problem: str) -> None:
        super().__init__(f"{segment.name}, byte {offset}: {problem}")
        self.segment: Final = segment
        self.offset: Final = offset
        self.problem: Final = problem


class LoggedRecord(NamedTuple):
    """One record with its place."""

    number: int
    """The input's number, counted from 1 in each life of the scheduler; of a record that isn't one, the last
    input's."""
    record: AnyRecord
    segment: "Segment"
    offset: int
    """The place of its frame in the file, in bytes."""


@dataclass(slots=True, eq=False)
class Segment:
    """One file."""

    path: Path
    header: Header
    begins: int
    """Chain of the header's frame."""
    start: int
    """Offset of the first frame after the header."""
    chain: int = 0
    """After reading: of the last frame."""
    ended: records.SegmentEnded | None = None
    """After reading: its last record; None when the scheduler was killed, or still writes."""
    torn: Torn | None = None
    """After reading: bytes that were cut at the end."""

    def read_entries(self) -> Iterator[LoggedRecord]:
        """All records in order. Raises LogDamagedError at the first byte that isn't right, or LogError."""
        hashes = HashesTaken()
        decode = _decoder(self.header, hashes)
        number = self.header.first_input - 1
        self.chain, self.ended, self.torn = self.begins, None, None
        try:
            for frame in frames(self.path.read_bytes(), self.begins, self.start):
                if isinstance(frame, Torn):
                    self.torn = frame
                    break
                self.chain = frame.chain
                if frame.hashes:
                    hashes.take_hashes(frame.payload)
                    continue
                for record in decode(frame.payload):
                    if isinstance(record, records.SegmentEnded):
                        self.ended = record
                    elif not isinstance(record, NOT_INPUTS):
                        number += 1
                    yield LoggedRecord(number, record, self, frame.offset)
        except FrameDamagedError as error:
            raise LogDamagedError(self.path, error.offset, error.problem) from error
        except OSError as error:
            raise LogError(f"{self.path}: {(error.strerror or str(error)).lower()}") from error
        except msgspec.MsgspecError as error:
            raise LogError(f"{self.path}: a record can't be read by this version: {error}") from error


@dataclass(slots=True, eq=False)
class Flight:
    """The segments of one pool, from one life of one scheduler, in order."""

    pool: str
    scheduler: str
    segments: list[Segment] = field(default_factory=list[Segment])

    def read_entries(self) -> Iterator[LoggedRecord]:
        """All records of all segments. Raises LogDamagedError where a segment was changed, is missing, or lost its end
        although another one follows it."""
        before: Segment | None = None
        for segment in self.segments:
            if before is not None:
                _check_sequence(before, segment)
            yield from segment.read_entries()
            before = segment


def _decoder(header: Header, hashes: HashesTaken) -> Callable[[bytes], Iterable[AnyRecord]]:
    """Reads the records in the payload of a frame."""
    one: Any = AnyRecord
    for kind in EARLIER:
        one = one | kind
    nested = header.format >= NESTED
    decoder = msgspec.msgpack.Decoder(list[list[one]] if nested else list[one], dec_hook=hashes.decode_record)

    def decode(payload: bytes) -> Iterator[AnyRecord]:
        found: list[Any] = decoder.decode(payload)
        for record in chain.from_iterable(found) if nested else found:
            yield cast("AnyRecord", today(record, header.pool))

    return decode


def _check_sequence(before: Segment, segment: Segment) -> None:
    header = segment.header
    if not header.follows:
        return
    if header.index != before.header.index + 1:
        raise LogDamagedError(segment.path, 0, f"segments {before.header.index + 1} to {header.index - 1} are missing")
    if before.chain != header.previous:
        raise LogDamagedError(
            before.path,
            before.path.stat().st_size,
            "the end of the segment is missing: the next one continues another frame",
        )


def open_segment(path: Path) -> Segment:
    """Read the header of a segment. Raises LogError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise NoLogError(f"{path}: no such file or directory") from error
    except OSError as error:
        raise LogError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if content[: len(MAGIC)] != MAGIC:
        if path.suffix != SUFFIX:
            raise NoLogError(f"{path}: not a segment of a flight log")
        raise LogDamagedError(path, 0, "not a segment of a flight log")
    try:
        first = next(frames(content, 0, len(MAGIC)), None)
    except FrameDamagedError as error:
        raise LogDamagedError(path, error.offset, error.problem) from error
    if not isinstance(first, Frame):
        raise LogDamagedError(path, len(MAGIC), "the header is missing")
    try:
        header = msgspec.msgpack.decode(first.payload, type=Header)
    except msgspec.MsgspecError as error:
        raise LogError(f"{path}: the header can't be read by this version: {error}") from error
    if not 1 <= header.format <= FORMAT:
        raise LogError(f"{path}: format {header.format}; this version reads format {FORMAT}")
    return Segment(path, header, first.chain, first.end)


def open_log(paths: Iterable[Path]) -> list[Flight]:
    """The flights in these segments and directories, oldest first. Raises LogError, which is NoLogError without one."""
    found: dict[tuple[str, str], Flight] = {}
    given = list(paths)
    for path in _segments(given):
        segment = open_segment(path)
        header = segment.header
        key = (header.pool, header.scheduler)
        flight = found.setdefault(key, Flight(*key))
        flight.segments.append(segment)
    if not found:
        raise NoLogError(f"{', '.join(map(str, given))}: no segment (*{SUFFIX}) is there")
    for flight in found.values():
        flight.segments.sort(key=lambda segment: segment.header.index)
    return sorted(found.values(), key=lambda flight: flight.segments[0].header.unix_ns)


def _segments(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob(f"*{SUFFIX}"))
        else:
            yield path
