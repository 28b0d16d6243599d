"""Every recorded decision is made again, bit for bit: from the beginning, and from any segment."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_flight.reader import LogDamagedError, open_log, open_segment
from pointsman_flight.records import Decided, LookedAtWaiting
from pointsman_flight.salt import Salt
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_scheduler.domain.late_binding import Bound, PeerRequest
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.flight.replay import FlightReplay
from pointsman_scheduler.plugins import registries
from pointsman_testing.recorded_traffic import POLICIES, RandomTraffic, RecordedBench, replayed

# Nothing here waits: only a machine that others use as well makes it late.
pytestmark = pytest.mark.timeout(600)


def flown(directory: Path, policy: int, seed: int, steps: int, segments: int = 1, *, hash_ids: bool = False) -> None:
    bench = RecordedBench(directory, POLICIES[policy], hash_ids=hash_ids)
    traffic = RandomTraffic(bench, seed)
    for segment in range(segments):
        if segment:
            bench.rotate()
        traffic.run(steps)
    bench.end()


@pytest.mark.requirement("FLIGHT-1")
@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_every_decision_is_made_again_from_the_beginning(tmp_path: Path, policy: int) -> None:
    flown(tmp_path, policy, seed=policy, steps=1500)
    decisions, differences = replayed(tmp_path)
    assert decisions > 500
    assert not differences


@pytest.mark.requirement("FLIGHT-1")
@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_a_replay_begins_at_any_segment(tmp_path: Path, policy: int) -> None:
    flown(tmp_path, policy, seed=10 + policy, steps=400, segments=4)
    paths = sorted(tmp_path.rglob("*.flight"))
    assert len(paths) == 4
    for first in range(4):
        decisions, differences = replayed(*paths[first:])
        assert decisions > 100
        assert not differences, first


@pytest.mark.requirement("FLIGHT-1")
def test_waits_for_an_engine_replay_alike_from_any_segment(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path)
    traffic = RandomTraffic(bench, 20, revisions=False)
    for segment in range(3):
        if segment:
            bench.rotate()
            assert len(bench.pool.binder)  # the snapshot has some that wait
        traffic.run(800)
        while not len(bench.pool.binder):
            traffic.burst()
    bench.end()
    paths = sorted(tmp_path.rglob("*.flight"))
    for first in range(3):
        [flight] = open_log(paths[first:])
        steps = list(FlightReplay(flight, registries()).run())
        assert not [step.difference for step in steps if step.difference]
        decided = [step.logged.record for step in steps if isinstance(step.logged.record, Decided)]
        assert sum(record.outcome.kind == "postponed" for record in decided) > 150
        assert any(record.request is None for record in decided)  # and left again


class StaysHere(FlightReplay):
    """Its first request that should go to an engine stays."""

    def new_pool(self, index: PrefixIndex) -> PoolScheduler:
        pool = super().new_pool(index)
        inner = pool.bind

        def bind(now: float) -> list[Bound]:
            bound = inner(now)
            if bound:
                pool.bind = inner
            return bound[1:]

        pool.bind = bind
        return pool


class AnotherGoes(FlightReplay):
    """Another request goes to an engine than the recorded one."""

    def new_pool(self, index: PrefixIndex) -> PoolScheduler:
        pool = super().new_pool(index)
        inner = pool.bind
        pool.bind = lambda now: [each._replace(request=replace(each.request, edge="other")) for each in inner(now)]
        return pool


@pytest.mark.requirement("FLIGHT-1")
@pytest.mark.parametrize(
    ("wrong", "named"), [(StaysHere, "bound requests: "), (AnotherGoes, "failed (LookupError) replayed")]
)
def test_a_request_that_waits_longer_in_the_replay_is_named(
    tmp_path: Path, wrong: type[FlightReplay], named: str
) -> None:
    bench = RecordedBench(tmp_path)
    traffic = RandomTraffic(bench, 20, revisions=False)
    traffic.run(800)
    bench.end()
    [flight] = open_log([tmp_path])
    differences = [step.difference for step in wrong(flight, registries()).run() if step.difference]
    assert named in differences[0]


@pytest.mark.requirement("FLIGHT-1")
def test_a_look_at_no_waiting_request_is_not_recorded(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path)
    assert not bench.pool.bind(bench.now)
    bench.end()
    [flight] = open_log([tmp_path])
    assert not [each for each in flight.read_entries() if isinstance(each.record, LookedAtWaiting)]


@settings(max_examples=25, deadline=None)
@example(seed=7714, policy=1, steps=141)  # prefixes of sessions are kept in the order of their last use
@example(seed=0, policy=0, steps=149)  # the second segment begins with a request that waits, for an engine with ranks
@given(seed=st.integers(0, 2**32), policy=st.integers(0, len(POLICIES) - 1), steps=st.integers(1, 200))
def test_any_inputs_replay_alike(tmp_path_factory: pytest.TempPathFactory, seed: int, policy: int, steps: int) -> None:
    directory = tmp_path_factory.mktemp("flight")
    flown(directory, policy, seed, steps, segments=2)
    paths = sorted(directory.rglob("*.flight"))
    assert not replayed(*paths)[1]
    assert not replayed(paths[1])[1]


@pytest.mark.requirement("FLIGHT-4")
def test_hashed_ids_replay_alike_and_are_nowhere_in_the_log(tmp_path: Path) -> None:
    flown(tmp_path, 1, seed=5, steps=600, segments=2, hash_ids=True)
    paths = sorted(tmp_path.rglob("*.flight"))
    assert not replayed(*paths)[1]
    assert not replayed(paths[1])[1]
    for text in ("scheduler-1-request", "session-1"):
        assert text not in plain(paths)


def test_no_header_is_in_the_log_unless_a_plugin_reads_it(tmp_path: Path) -> None:
    flown(tmp_path, 0, seed=5, steps=300, segments=2)
    assert "a secret" not in plain(sorted(tmp_path.rglob("*.flight")))


def test_another_order_of_hashing_changes_nothing(tmp_path: Path) -> None:
    flown(tmp_path, 0, seed=6, steps=1000, segments=2)
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    code = (
        "import sys; from pathlib import Path; from pointsman_testing.recorded_traffic import replayed; "
        "print(replayed(Path(sys.argv[1])))"
    )
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-c", code, str(folder)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.strip().endswith(", [])"), ran.stdout


@pytest.mark.requirement("FLIGHT-2")
def test_a_changed_byte_is_named_by_the_replay(tmp_path: Path) -> None:
    flown(tmp_path, 0, seed=7, steps=200)
    (path,) = tmp_path.rglob("*.flight")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogDamagedError, match=path.name):
        replayed(tmp_path)


def plain(paths: list[Path]) -> str:
    """Every text in the log."""
    return "".join(repr(entry.record) for path in paths for entry in open_segment(path).read_entries())


@pytest.mark.requirement("FLIGHT-1")
def test_prompts_that_wait_at_peers_are_renamed_like_all_others(tmp_path: Path) -> None:
    """Under names of their own they would match no prefix in a replay, and wait elsewhere."""
    bench = RecordedBench(tmp_path, hash_ids=True)
    bench.join("engine-1")
    like, at = bench.prompt(1, 4), bench.now * 1000
    blocks = like.blocks.tobytes()
    theirs = PeerRequest(
        "engine-1",
        10.0,
        like.facts.prompt_tokens,
        0,
        at + 500,
        "edge-2",
        "theirs",
        at,
        None,
        like.facts.block_tokens,
        blocks,
    )
    bench.pool.binder.peer("scheduler-2", [theirs], at)
    bench.rotate()
    bench.end()
    salt = Salt(b"test")
    for path in sorted(tmp_path.rglob("*.flight")):  # from the report itself, and from a snapshot after it
        [flight] = open_log([path])
        replay = FlightReplay(flight, registries())
        assert not [step.difference for step in replay.run() if step.difference]
        peers = replay.pool.binder._peers  # pyright: ignore[reportPrivateUsage] - what a plan is made from
        [waits] = peers.waiting(("engine-1",), at)
        assert (waits.request.blocks.tobytes(), waits.request.request_id) == (
            salt.rename_packed(blocks),
            salt.hash_id("theirs"),
        )


def test_verdicts_on_engines_replay_from_the_log_and_from_a_snapshot(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path)
    bench.join("a", "b", "c", loras=("sql",))
    bench.hear("c", load_unknown="its page is late", worked_tokens=7)

    def turn(number: int) -> None:
        bench.now += 0.4
        for name in "ab":
            bench.hear(name, state="not_ready" if name == "b" and number % 5 == 0 else "serving", worked_tokens=number)
        bench.hear("c", load_unknown="its page is late")
        request = bench.prompt(number, 2, request_id=f"request-{number}", lora="sql" if number % 3 else None)
        first, *others = [worker.name for worker in bench.decide(request, seed=number).endpoints]
        books = bench.pool.books
        if number % 4 == 0:
            books.started(request.key, first, 5.0, bench.now)
            books.completed(request.key, bench.now, False, worker=first, ending="cut_off")
        elif number % 4 == 1 and others:
            bench.fail(request.request_id, first, others[0], outcome="missing", status=404)
            disproved = ((first, "missing", "sql"),)
            books.completed(request.key, bench.now, True, 3, 9.0, others[0], disproved=disproved)
        elif number % 4 == 2 and others:
            bench.fail(request.request_id, first, others[0], outcome="failed", status=500)
            books.completed(request.key, bench.now, True, 3, 9.0, others[0])
        bench.pool.sweep(bench.now, 0.1 * (number % 2))

    for number in range(40):
        turn(number)
    assert bench.pool.outliers.verdicts(bench.now)
    bench.rotate()
    for number in range(40, 80):
        turn(number)
    bench.end()
    decisions, differences = replayed(tmp_path)
    assert (decisions >= 80, differences) == (True, [])
    assert replayed(max(tmp_path.rglob("*.flight")))[1] == []


def test_handovers_between_two_engines_replay_from_the_log_and_from_a_snapshot(tmp_path: Path) -> None:
    roles = {
        name: {"filters": [{"use": "role", "role": name}], "scorers": ["least-delay"]} for name in ("prefill", "decode")
    }
    handler = {"use": "disaggregated", "prefill_when": "pays"}
    bench = RecordedBench(tmp_path, {"handler": handler, "deciders": ["pays"], "profiles": roles})
    bench.join("p", role="prefill")
    bench.join("d", role="decode")
    apart = 0

    def turn(number: int) -> None:
        nonlocal apart
        request = bench.prompt(number, 100, request_id=f"request-{number}")
        outcome = bench.decide(request, seed=number)
        legs = len(outcome.holds) > 1
        apart += legs
        bench.now += 0.3
        bench.pool.books.started(request.key, "d", 60.0, bench.now, 60.0 if legs else None)
        bench.now += 0.5
        bench.pool.books.completed(request.key, bench.now, True, 40, 800.0, "d")

    for number in range(60):
        turn(number)
    bench.rotate()
    for number in range(60, 120):
        turn(number)
    bench.end()
    assert 0 < apart < 120
    decisions, differences = replayed(tmp_path)
    assert (decisions, differences) == (120, [])
    assert replayed(max(tmp_path.rglob("*.flight")))[1] == []


def test_promised_times_between_tokens_replay_from_the_log_and_from_a_snapshot(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, {"late_binding": {"enabled": False}})
    bench.join("a")
    bench.join("b")
    open_ones: list[tuple[str, RequestKey]] = []
    for number in range(120):
        request = bench.prompt(number, 20, request_id=f"request-{number}", slo_class="chat", slo_itl_ms=100.0)
        outcome = bench.decide(request, seed=number)
        open_ones.append((outcome.endpoints[0].name, request.key))
        bench.now += 0.1
        bench.pool.books.started(request.key, open_ones[-1][0], 60.0, bench.now)
        if len(open_ones) > 5:
            worker, key = open_ones.pop(0)
            bench.pool.books.completed(key, bench.now, True, 40, 500.0, worker)
        if number == 60:
            bench.rotate()
    bench.end()
    decisions, differences = replayed(tmp_path)
    assert (decisions, differences) == (120, [])
    assert replayed(max(tmp_path.rglob("*.flight")))[1] == []
