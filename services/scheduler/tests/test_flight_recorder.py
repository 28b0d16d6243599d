"""The recorder: what it writes, what it does when the disk refuses, and that a pool without it runs none of it."""

import asyncio
import errno
import subprocess
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.message import Blob
from pointsman_contracts.scheduling import ReservationChange
from pointsman_core.config.flight import FlightSettings
from pointsman_flight.header import Header
from pointsman_flight.reader import open_log, open_segment
from pointsman_flight.records import Decided, PeerChanged, PeerWaiting
from pointsman_flight.writer import SegmentWriter
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import PeerRequest
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.flight.backlog import EncodedPart
from pointsman_scheduler.flight.metrics import FlightMetrics
from pointsman_scheduler.flight.recorder import RETRY_S, FlightRecorder
from pointsman_scheduler.flight.segments import SegmentLog
from pointsman_scheduler.flight.tap import TAPPED
from pointsman_testing.recorded_traffic import RandomTraffic, replayed
from pointsman_testing.scheduler_bench import LIFE, Bench

READ_ONLY = {
    "pool": {"decide", "foresee", "look_at", "known_bad", "laid_out", "find_stopped"},
    "books": {
        "edge_gone", "put", "confirm", "take_off", "drop_requests_on", "set_observers", "find_reservation",
        "reservations_of", "ended", "ended_before", "doubtful", "end_earlier_decisions",
    },
    "binder": {
        "counts", "holds", "put", "silent", "look_at", "bind", "is_overfull", "worker_of", "waiting", "count_peers",
    },
    "index": {
        "join", "describe", "lay_out", "forget", "cleared", "match", "write", "confirm", "retract", "stored", "removed",
        "retold", "sweep", "memory", "bits", "thawed", "held", "has_reports", "find_reporters", "add_answer",
        "store_below", "remove_below", "clear_below", "count_below", "match_below",
    },
}  # fmt: skip
"""Methods that aren't noted: they change nothing, or others of the pool's objects call them alone."""


class Rig:
    """A recorder, and one pool with traffic."""

    def __init__(self, directory: Path, flight: FlightSettings | None, *, most_bytes: int = 2**24) -> None:
        self.directory = directory
        self.bench = Bench()
        self.pools: list[PoolScheduler] = [self.bench.pool]
        self.registry = CollectorRegistry()
        self.now = 0.0
        metrics = FlightMetrics(self.registry)
        self.recorder = FlightRecorder(
            directory, "salt", "1", lambda: self.pools, metrics, most_bytes, lambda: self.now
        )
        self.recorder.apply_settings({"llama": flight})
        self.traffic = RandomTraffic(self.bench, 1, revisions=False)

    async def fly(self, steps: int) -> None:
        for _ in range(2):  # the second takes over after a gap
            await self.recorder.write_turn()
        self.traffic.run(steps)
        self.now += 1.0
        await self.recorder.write_turn()

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"pointsman_scheduler_flight_{name}_total", {"pool": "llama"}) or 0.0


async def test_decisions_made_while_it_recorded_are_replayed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    for _ in range(3):
        await rig.fly(200)
    await rig.recorder.close()
    decisions, differences = replayed(tmp_path)
    assert decisions > 100
    assert not differences
    assert rig.count("inputs") > 500


async def test_segments_rotate_and_each_begins_a_replay(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings(segment=0.5))
    for _ in range(4):
        await rig.fly(100)
    await rig.recorder.close()
    paths = written(tmp_path)
    assert len(paths) >= 4
    for first in range(len(paths)):
        assert not replayed(*paths[first:])[1]


async def test_a_snapshot_is_of_one_moment_although_traffic_goes_on_while_it_is_copied(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings(segment=0.5))
    for _ in range(4):
        await rig.fly(100)
        turn = asyncio.create_task(rig.recorder.write_turn())
        while not turn.done():
            rig.traffic.run(5)
            await asyncio.sleep(0)
    await rig.recorder.close()
    paths = written(tmp_path)
    assert len(paths) >= 4
    for first in range(len(paths)):
        assert not replayed(*paths[first:])[1]


async def test_a_turn_that_has_begun_ends_when_the_recorder_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_scheduler.flight.recorder.TURN_S", 0.0)
    monkeypatch.setattr("pointsman_scheduler.flight.backlog._PART_BYTES", 10_000)
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(20)
    rig.traffic.run(500)
    running = asyncio.create_task(rig.recorder.run())
    pack, packed = SegmentLog.pack_records, list[int]()

    def stop(log: SegmentLog, part: EncodedPart) -> bytes:
        packed.append(part.size)
        running.cancel()
        return pack(log, part)

    monkeypatch.setattr(SegmentLog, "pack_records", stop)
    with pytest.raises(asyncio.CancelledError):
        await running
    rig.traffic.run(20)
    await rig.recorder.close()
    assert len(packed) > 2
    decisions, differences = replayed(tmp_path)
    assert decisions > 100
    assert not differences
    assert all(not open_segment(path).header.gap for path in written(tmp_path))


@pytest.mark.timeout(600)  # 6,000 inputs and their replay on one core, which others may use as well
async def test_the_oldest_segments_go_when_the_log_is_full(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings(keep=2**20, segment=0.5))
    for _ in range(60):
        await rig.fly(100)
    await rig.recorder.close()
    assert sum(size(path) for path in written(tmp_path)) < 2 * 2**20
    assert open_log([tmp_path])[0].segments[0].header.index > 1
    assert not replayed(tmp_path)[1]


@pytest.mark.requirement("FLIGHT-3")
async def test_a_full_disk_stops_no_decision_and_the_log_names_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(200)
    with monkeypatch.context() as full:
        full.setattr(SegmentWriter, "put", refuse)
        await rig.fly(200)
        assert rig.bench.decide().endpoints
        await rig.fly(200)
    rig.now += RETRY_S
    await rig.fly(200)
    await rig.recorder.close()
    assert rig.count("gaps") == 1
    _, second = open_log([tmp_path])[0].segments
    assert second.header.gap == "no space left on device"
    assert second.header.missed > 100
    assert not replayed(tmp_path)[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"mounting isn't permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # also with files open after a failure


@pytest.mark.requirement("FLIGHT-3")
async def test_a_disk_that_is_really_full_stops_no_decision_and_the_log_names_the_gap(small_disk: Path) -> None:
    rig = Rig(small_disk, FlightSettings())
    await rig.fly(200)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        fill(ballast)
    while not rig.count("gaps"):
        await rig.fly(200)
        assert rig.bench.decide().endpoints
    ballast.unlink()
    rig.now += RETRY_S
    await rig.fly(200)
    await rig.recorder.close()
    first, second = open_log([small_disk])[0].segments
    assert len(list(first.read_entries())) > 200
    assert first.ended is None
    assert second.header.gap == "no space left on device"
    assert second.header.missed > 0
    assert not replayed(small_disk)[1]


async def test_a_log_that_begins_with_a_snapshot_lacks_nothing_although_inputs_came_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    rig.traffic.run(50)
    await rig.fly(50)
    await rig.recorder.close()
    (segment,) = open_log([tmp_path])[0].segments
    assert (segment.header.empty, segment.header.gap, segment.header.missed) == (False, "", 0)
    assert segment.header.first_input == 1


def after_a_gap(directory: Path) -> Header:
    """The header of the second segment, after a first one that ended with a gap."""
    first, second = open_log([directory])[0].segments[:2]
    list(first.read_entries())
    assert first.ended is not None
    assert first.ended.reason == "gap"
    assert second.header.missed == first.ended.dropped
    return second.header


async def test_inputs_that_come_too_fast_end_the_segment_and_are_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings(), most_bytes=10_000)
    await rig.fly(300)
    await rig.fly(20)
    await rig.recorder.close()
    assert after_a_gap(tmp_path).missed > 100
    assert not replayed(tmp_path)[1]


async def test_messages_of_peers_are_recorded_in_the_types_in_which_they_come(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings(segment=0.5))
    await rig.fly(50)
    bench, blocks = rig.bench, Blob(bytes(range(16)))
    waiting = PeerRequest("engine-0", 5.0, 10, 0, 1e9, "edge-2", "waits", 1.0, None, 64, blocks)
    bench.pool.binder.peer("scheduler-2", [waiting], bench.now * 1000)
    change = ReservationChange(
        op="reserve", request_id="request", worker="engine-0", boot_id=LIFE, edge="edge-2", blocks=blocks
    )
    bench.pool.books.apply(change, "scheduler-2", bench.now)
    rig.now += 1.0
    await rig.recorder.write_turn()
    await rig.fly(50)
    await rig.recorder.close()
    segments = open_log([tmp_path])[0].segments
    entries = [each.record for segment in segments for each in segment.read_entries()]
    (told,) = [each for each in entries if isinstance(each, PeerChanged) and each.change.request_id == "request"]
    assert len(told.blocks) == len(blocks)
    assert any(isinstance(each, PeerWaiting) and each.requests and each.requests[0][6] == "waits" for each in entries)
    for first in range(len(segments)):
        assert not replayed(*written(tmp_path)[first:])[1]


async def test_the_configured_headers_are_recorded_and_no_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings(headers=("epp-profile",)))
    await rig.fly(100)
    await rig.recorder.close()
    decided = [each.record for each in open_log([tmp_path])[0].read_entries() if isinstance(each.record, Decided)]
    headers = [each.request.facts.headers for each in decided if each.request is not None]
    assert headers
    assert all(each == {"epp-profile": "default"} for each in headers)


async def test_a_decision_that_cannot_be_recorded_ends_the_segment_and_fails_no_request(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(100)
    assert rig.bench.decide(rig.bench.request(attempt=2**70)).endpoints
    assert rig.bench.serve()
    await rig.fly(20)
    await rig.fly(20)
    await rig.recorder.close()
    header = after_a_gap(tmp_path)
    assert header.gap.startswith("an input can't be recorded: ")
    assert header.missed > 3
    assert not replayed(tmp_path)[1]


async def test_an_input_that_cannot_be_recorded_ends_the_segment_and_fails_no_request(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(100)
    worker = rig.bench.serve()
    rig.bench.pool.books.completed(("edge-1", "request"), rig.bench.now, ok=True, output_tokens=2**70, worker=worker)
    assert rig.bench.serve()
    await rig.fly(20)
    await rig.fly(20)
    await rig.recorder.close()
    header = after_a_gap(tmp_path)
    assert header.gap.startswith("an input can't be recorded: ")
    assert header.missed > 3
    assert not replayed(tmp_path)[1]


async def test_half_a_block_hash_ends_the_segment_and_not_the_recorder(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(100)
    rig.bench.pool.hear_kv("an unknown engine", LIFE, Told(b"half", ()), complete=True, now=rig.bench.now)
    await rig.fly(20)
    await rig.fly(20)
    await rig.recorder.close()
    assert after_a_gap(tmp_path).gap == "an input can't be recorded: 4 bytes are no block hashes"
    assert not replayed(tmp_path)[1]


async def test_half_a_block_hash_of_a_peer_ends_the_segment_and_not_the_recorder(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(100)
    change = ReservationChange(
        op="reserve",
        request_id="request",
        worker="an unknown engine",
        boot_id=LIFE,
        edge="edge-2",
        blocks=Blob(b"half"),
    )
    assert not rig.bench.pool.books.apply(change, "scheduler-2", rig.bench.now)
    await rig.fly(20)
    await rig.fly(20)
    await rig.recorder.close()
    assert after_a_gap(tmp_path).gap == "an input can't be recorded: 4 bytes are no block hashes"
    assert not replayed(tmp_path)[1]


@pytest.mark.requirement("FLIGHT-3")
async def test_a_folder_that_cannot_be_made_stops_no_decision(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rig = Rig(tmp_path / "file", FlightSettings())
    await rig.fly(50)
    assert rig.bench.decide().endpoints
    await rig.recorder.close()
    assert rig.count("gaps") == 1


async def test_turning_it_off_ends_the_log_and_gives_the_pool_its_methods_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, FlightSettings())
    await rig.fly(100)
    rig.recorder.apply_settings({"llama": None})
    rig.traffic.run(50)
    await rig.recorder.write_turn()
    (path,) = written(tmp_path)
    segment = open_segment(path)
    list(segment.read_entries())
    assert segment.ended is not None
    assert not shadowed(rig.bench.pool)
    assert not replayed(tmp_path)[1]
    await rig.recorder.close()


def test_a_pool_without_flight_log_runs_its_own_methods(tmp_path: Path) -> None:
    rig = Rig(tmp_path, None)
    assert not shadowed(rig.bench.pool)
    assert not list(tmp_path.iterdir())


async def test_a_pool_is_recorded_from_its_first_moment(tmp_path: Path) -> None:
    made: list[PoolScheduler] = []
    recorder = FlightRecorder(tmp_path, None, "1", lambda: made, FlightMetrics(CollectorRegistry()))
    recorder.apply_settings({"llama": FlightSettings()})
    Pools("scheduler-1", 2**26, recorder.record_pool).of("llama")
    await recorder.write_turn()
    await recorder.close()
    (flight,) = open_log([tmp_path])
    assert flight.segments[0].header.empty


def test_every_method_by_which_something_enters_a_pool_is_noted() -> None:
    pool = Bench().pool
    for place, thing in (
        ("pool", pool), ("books", pool.books), ("binder", pool.binder), ("index", pool.index),
    ):  # fmt: skip
        public = {name for name in dir(type(thing)) if not name.startswith("_")}
        assert public <= {*TAPPED[place], *READ_ONLY[place]}, place
        assert {*TAPPED[place]} <= public


def shadowed(pool: PoolScheduler) -> Iterable[str]:
    places = {"pool": pool, "books": pool.books, "binder": pool.binder, "index": pool.index}
    return [name for place, names in TAPPED.items() for name in names if name in vars(places[place])]


def written(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.flight"))


def size(path: Path) -> int:
    return path.stat().st_size


def fill(ballast: Path) -> None:
    """Write until the disk is full. OSError then."""
    with ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def refuse(writer: SegmentWriter, content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
