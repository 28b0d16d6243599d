"""Segments: what is written is read, and every other byte is an error that names its place."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_flight.frames import FORMAT, HASHES, Frame, framed, frames
from pointsman_flight.header import Header
from pointsman_flight.reader import Flight, LogDamagedError, LogError, Segment, open_log, open_segment
from pointsman_flight.records import (
    AnswerStarted,
    KvTold,
    Record,
    RequestCompleted,
    SegmentEnded,
    Swept,
    WorkerRemoved,
)
from pointsman_flight.writer import SegmentWriter, remove_oldest


def header(index: int = 1, **changed: object) -> Header:
    fields: dict[str, object] = {
        "format": FORMAT, "product": "1", "pool": "llama", "scheduler": "scheduler-1", "index": index, "empty": True,
        "follows": False, "first_input": 1, "unix_ns": 1_700_000_000_000_000_000 + index, "monotonic": 1.0,
        "salt": "abcd", "hashed_ids": False, "index_bytes": 2**20,
    }  # fmt: skip
    return Header(**(fields | changed))  # pyright: ignore[reportArgumentType] - named by the test


RECORDS: list[Record] = [
    AnswerStarted(1.5, "edge-1", "request-1", "engine-1", 12.5),
    RequestCompleted(2.5, "edge-1", "request-1", ok=True, output_tokens=5, duration_ms=1e3, worker=None, told_ms=7),
    KvTold(3.5, "engine-1", "life", None, (("stored", b"12345678"),), complete=True),
    WorkerRemoved(4.5, "engine-1"),
]


def write(directory: Path, batches: Sequence[Sequence[Record]], *, end: bool = True, **changed: object) -> Path:
    writer = SegmentWriter(directory, header(**changed))  # pyright: ignore[reportArgumentType] - named by the test
    for batch in batches:
        writer.write(batch)
    if end:
        writer.end_file("closed")
    else:
        writer.abandon_file()
    return writer.path


def read(path: Path) -> tuple[Segment, list[Record]]:
    segment = open_segment(path)
    return segment, [entry.record for entry in segment.read_entries()]


@pytest.mark.parametrize(("words", "most"), [(b"a phrase that repeats", 0.1), (None, 1.01)], ids=["text", "hashes"])
def test_a_large_frame_is_read_whether_it_was_worth_deflating_or_not(words: bytes | None, most: float) -> None:
    payload = (words * 10_000)[:100_000] if words else random.Random(1).randbytes(100_000)
    frame, chain = framed(payload, 5)
    [read_back] = frames(frame, 5)
    assert isinstance(read_back, Frame)
    assert (read_back.payload, read_back.chain) == (payload, chain)
    assert len(frame) <= most * len(payload)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    segment, records = read(write(tmp_path, [RECORDS[:2], RECORDS[2:]]))
    assert records == [*RECORDS, SegmentEnded("closed")]
    assert segment.ended == SegmentEnded("closed")
    assert segment.torn is None


def test_inputs_are_numbered_from_the_header_on(tmp_path: Path) -> None:
    segment = open_segment(write(tmp_path, [RECORDS], first_input=40))
    assert [entry.number for entry in segment.read_entries()] == [40, 41, 42, 43, 43]


def test_every_changed_byte_is_an_error_that_names_its_frame(tmp_path: Path) -> None:
    path = write(tmp_path, [RECORDS[:2], RECORDS[2:]])
    good = path.read_bytes()
    offsets = sorted({entry.offset for entry in open_segment(path).read_entries()})
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes((good[place] ^ 0x10,)) + good[place + 1 :])
        with pytest.raises(LogDamagedError) as caught:
            read(path)
        assert caught.value.segment == path
        frame = max((offset for offset in offsets if offset <= place), default=0)
        if frame:
            assert caught.value.offset == frame


@given(bits=st.integers(1, 255), where=st.floats(0, 1, exclude_max=True))
def test_any_other_value_of_a_byte_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, bits: int, where: float
) -> None:
    path = write(tmp_path_factory.mktemp("log"), [[*RECORDS] * 50, RECORDS])
    good = path.read_bytes()
    place = int(where * len(good))
    path.write_bytes(good[:place] + bytes((good[place] ^ bits,)) + good[place + 1 :])
    with pytest.raises(LogDamagedError):
        read(path)


def test_a_torn_tail_is_cut_and_nothing_before_it_is_lost(tmp_path: Path) -> None:
    path = write(tmp_path, [RECORDS[:2], RECORDS[2:]], end=False)
    good = path.read_bytes()
    last = max(entry.offset for entry in open_segment(path).read_entries())
    for length in range(last + 1, len(good)):
        path.write_bytes(good[:length])
        segment, records = read(path)
        assert records == RECORDS[:2]
        assert segment.torn == (last, length - last)


def test_a_tail_of_zeros_counts_as_torn(tmp_path: Path) -> None:
    path = write(tmp_path, [RECORDS], end=False)
    with path.open("ab") as file:
        file.write(bytes(100))
    segment, records = read(path)
    assert records == RECORDS
    assert segment.torn is not None


def test_frames_that_changed_places_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [RECORDS[:1], RECORDS[1:2], RECORDS[2:]], end=False)
    good = path.read_bytes()
    first, second, third = sorted({entry.offset for entry in open_segment(path).read_entries()})
    path.write_bytes(good[:first] + good[second:third] + good[first:second] + good[third:])
    with pytest.raises(LogDamagedError):
        read(path)


def test_a_removed_frame_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [RECORDS[:1], RECORDS[1:2], RECORDS[2:]])
    good = path.read_bytes()
    first, second, *_ = sorted({entry.offset for entry in open_segment(path).read_entries()})
    path.write_bytes(good[:first] + good[second:])
    with pytest.raises(LogDamagedError):
        read(path)


def chained(directory: Path, count: int) -> list[Path]:
    paths: list[Path] = []
    previous, first_input = 0, 1
    for index in range(1, count + 1):
        writer = SegmentWriter(directory, header(index, follows=index > 1, previous=previous, first_input=first_input))
        writer.write(RECORDS)
        writer.end_file("rotated")
        previous, first_input = writer.chain, first_input + len(RECORDS)
        paths.append(writer.path)
    return paths


def inputs(flights: Sequence[Flight]) -> list[int]:
    return [
        entry.number
        for flight in flights
        for entry in flight.read_entries()
        if not isinstance(entry.record, SegmentEnded)
    ]


def test_segments_follow_each_other(tmp_path: Path) -> None:
    chained(tmp_path, 3)
    assert inputs(open_log([tmp_path])) == list(range(1, 13))


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    paths = chained(tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(LogDamagedError, match="segments 2 to 2 are missing"):
        inputs(open_log([tmp_path]))


def test_the_missing_end_of_an_earlier_segment_is_an_error(tmp_path: Path) -> None:
    paths = chained(tmp_path, 2)
    last = max(entry.offset for entry in open_segment(paths[0]).read_entries())
    paths[0].write_bytes(paths[0].read_bytes()[:last])
    with pytest.raises(LogDamagedError, match="the end of the segment is missing"):
        inputs(open_log([tmp_path]))


def test_the_oldest_segments_go_first_and_the_open_one_stays(tmp_path: Path) -> None:
    paths = chained(tmp_path, 4)
    size = paths[0].stat().st_size
    assert remove_oldest(tmp_path, 2 * size + size // 2, paths[3]) == paths[:2]
    assert remove_oldest(tmp_path, 0, paths[3]) == [paths[2]]
    assert inputs(open_log([tmp_path])) == list(range(13, 17))


def test_another_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, [RECORDS], format=99)
    with pytest.raises(LogError, match=f"format 99; this version reads format {FORMAT}"):
        open_segment(path)


def test_a_file_that_is_no_segment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.flight"
    path.write_text("hello")
    with pytest.raises(LogError, match="not a segment"):
        open_log([path])


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no segment"):
        open_log([tmp_path])


def test_large_batches_are_written_in_several_frames(tmp_path: Path) -> None:
    records: list[Record] = [KvTold(1.0, "engine-1", "life", bytes(2**20), (), complete=True) for _ in range(12)]
    segment, found = read(write(tmp_path, [records]))
    assert found[:-1] == records
    assert len({entry.offset for entry in segment.read_entries()}) > 2


def test_a_frame_that_inflates_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, [], end=False)
    segment = open_segment(path)
    frame, _ = framed(bytes(65 * 2**20), segment.begins)
    path.write_bytes(path.read_bytes() + frame)
    with pytest.raises(LogDamagedError, match="larger than"):
        list(segment.read_entries())


@given(st.lists(st.lists(st.builds(Swept, st.floats(allow_nan=False), st.booleans()), max_size=5), max_size=5))
def test_any_batches_come_back_in_order(tmp_path_factory: pytest.TempPathFactory, batches: list[list[Record]]) -> None:
    _, records = read(write(tmp_path_factory.mktemp("log"), batches))
    assert records == [*[record for batch in batches for record in batch], SegmentEnded("closed")]


def counted(*numbers: int) -> list[bytes]:
    """Records that have so many block hashes."""
    told = [KvTold(1.0, "engine-1", "life", number, (), complete=True) for number in numbers]  # pyright: ignore[reportArgumentType] - as they are written
    return [msgspec.msgpack.encode(told)]


def hashes(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def test_records_get_their_block_hashes_from_the_frame_before(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, header())
    first = writer.frame_records(counted(2, 0, 3), hashes((1, 2, 3, 4, 5)))
    writer.put(first + writer.frame_records(counted(1), hashes((1,))))
    writer.end_file("closed")
    _, records = read(writer.path)
    found = [record.everything for record in records if isinstance(record, KvTold)]
    assert found == [hashes((1, 2)), b"", hashes((3, 4, 5)), hashes((1,))]


def test_records_with_more_block_hashes_than_there_are_cannot_be_read(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, header())
    writer.put(writer.frame_records(counted(2), hashes((1,))))
    writer.end_file("closed")
    with pytest.raises(LogError, match="16 bytes of block hashes are needed, but only 8 are stored"):
        read(writer.path)


def test_a_changed_block_hash_is_an_error(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, header())
    writer.put(writer.frame_records(counted(2), hashes((1, 2))))
    writer.end_file("closed")
    good = writer.path.read_bytes()
    writer.path.write_bytes(good.replace(hashes((1, 2)), hashes((1, 3))))
    with pytest.raises(LogDamagedError):
        read(writer.path)


@pytest.mark.parametrize(("prompts", "most"), [(4, 0.3), (100, 1.01)], ids=["few", "different"])
def test_block_hashes_shrink_where_prompts_come_again(prompts: int, most: float) -> None:
    dice = random.Random(1)
    known = [dice.randbytes(8 * 40) for _ in range(prompts)]
    payload = b"".join(known[number % prompts] for number in range(100))
    frame, _ = framed(payload, 5, HASHES)
    [read_back] = frames(frame, 5)
    assert isinstance(read_back, Frame)
    assert (read_back.payload, read_back.hashes) == (payload, True)
    assert len(frame) <= most * len(payload)
