"""Reservations as they are written for peers of every version."""

import numpy as np
import orjson
import pytest
from msgspec.structs import replace

from pointsman_contracts.scheduling import ReservationChange, Reservations
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_testing.scheduler_bench import Bench


def published(*changes: ReservationChange) -> Reservations:
    return Reservations(pool="llama", scheduler="scheduler-1", sequence=3, at_ms=5, changes=changes)


def held(bench: Bench, **facts: object) -> Hold:
    """A reservation on the bench's worker, with these fields."""
    worker = next(iter(bench.pool.fleet))
    fields = {"op": "reserve", "request_id": "r", "worker": "w0", "boot_id": worker.registration.boot_id} | facts
    return Hold(ReservationChange(**fields), worker, 1.0)  # pyright: ignore[reportArgumentType] - named by the test


@pytest.mark.parametrize("op", ["reserve", "confirm", "release", "retract"])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        {
            "leg": "prefill", "edge": "edge-1", "attempt": 2, "prompt_tokens": 9, "uncached_tokens": 8,
            "output_tokens": 7, "block_tokens": 32, "blocks": bytes(range(248, 256)), "blocks_precise": True,
            "lora": "l", "session": "s", "rank": 0, "streamed": False,
        },
    ],
    ids=["defaults", "every field"],
)  # fmt: skip
def test_a_peer_of_any_version_reads_every_field_of_a_change(op: str, facts: dict[str, object]) -> None:
    bench = Bench()
    bench.join("w0")
    hold = held(bench, **facts)
    change = hold.with_op(op)
    payload = published(change, change).encode()
    document = Reservations.decode(payload)
    assert document.unbound is None
    for read in document.changes:
        assert {name: getattr(read, name) for name in ReservationChange.__struct_fields__} == {
            **{name: getattr(hold.change, name) for name in ReservationChange.__struct_fields__},
            "op": op,
        }


def test_a_scheduler_without_waiting_requests_says_so() -> None:
    payload = replace(published(), unbound=()).encode()
    assert Reservations.decode(payload).unbound == ()


def test_fields_with_their_defaults_are_left_out() -> None:
    bench = Bench()
    bench.join("w0")
    hold = held(bench)
    written = orjson.loads(published(hold.with_op("release")).encode())
    assert written["changes"] == [
        {"op": "release", "request_id": "r", "worker": "w0", "boot_id": hold.worker.registration.boot_id}
    ]


def test_a_rank_of_numpy_that_a_plugin_chose_is_written_as_a_number() -> None:
    bench = Bench()
    bench.join("w0")
    hold = held(bench, rank=np.int64(3))
    payload = published(hold.change).encode()
    assert Reservations.decode(payload).changes[0].rank == 3


@pytest.mark.requirement("OBSERVE-1", "S2-17")
def test_the_blocks_of_an_answer_are_held_by_the_engine_that_gave_it() -> None:
    bench = Bench()
    bench.join("a", "b")
    first = bench.prompt(1, blocks=4)
    worker = bench.decide(first).holds[0].worker.name
    books, answer = bench.pool.books, np.arange(900, 903, dtype="<u8").tobytes()
    books.add_answer(first.key, "no such worker", answer, bench.now)
    books.started(first.key, worker, 10.0, bench.now)
    books.add_answer(first.key, worker, answer, bench.now)
    books.completed(first.key, bench.now, ok=True, worker=worker)
    books.add_answer(first.key, worker, np.arange(990, 993, dtype="<u8").tobytes(), bench.now)  # over: no-op
    conversation = np.concatenate([first.blocks, np.frombuffer(answer, dtype="<u8"), np.arange(990, 992, dtype="<u8")])
    bench.pool.index.lay_out([each.life for each in bench.pool.fleet.workers])
    matched = bench.pool.index.match(conversation.astype(np.uint64))
    held = dict(zip((each.name for each in bench.pool.fleet.workers), matched.tolist(), strict=True))
    assert held == {name: 7.0 if name == worker else 0.0 for name in ("a", "b")}


@pytest.mark.requirement("CASCADE-1")
def test_an_engine_whose_answer_a_cascade_does_not_give_is_free_again_and_keeps_the_prompt() -> None:
    bench = Bench()
    bench.join("a", "b")
    request = bench.prompt(1, blocks=4)
    name = bench.decide(request).holds[0].worker.name
    worker = bench.pool.fleet.find(name)
    assert worker is not None
    bench.fail(request.request_id, name, outcome="escalated")
    assert (len(bench.pool.books), worker.holds, worker.standing.failures) == (0, {}, 0)
    bench.pool.index.lay_out([each.life for each in bench.pool.fleet.workers])
    matched = bench.pool.index.match(request.blocks)
    assert [float(each) for each in matched] == [4.0 if each.name == name else 0.0 for each in bench.pool.fleet.workers]
    # The cascade's next model may be served by the same pool.
    assert bench.decide(request).holds[0].request == request.key


@pytest.mark.requirement("CASCADE-1")
@pytest.mark.parametrize("late", ["both", "started", "failed"])
def test_what_is_reported_late_of_a_cascades_first_answer_leaves_the_next_models_reservation(late: str) -> None:
    bench = Bench()
    bench.join("a")
    first = bench.prompt(1, blocks=4)
    bench.decide(first)
    second = bench.prompt(1, blocks=4, request_id=first.request_id, decision=2, escalated=("small",))
    (hold,) = bench.decide(second).holds
    assert (hold.request, hold.change.decision, len(bench.pool.books)) == (first.key, 2, 1)
    if late != "failed":
        bench.pool.books.started(first.key, "a", 5.0, bench.now)
    if late != "started":
        bench.fail(first.request_id, "a", outcome="escalated")
    assert bench.pool.books.find_reservation(first.key) is hold
    assert not hold.confirmed
    bench.pool.books.started(first.key, "a", 5.0, bench.now, decision=2)
    assert hold.confirmed
    bench.fail(first.request_id, "a", decision=2)
    assert len(bench.pool.books) == 0


@pytest.mark.requirement("CASCADE-1")
def test_a_peer_reserves_anew_for_a_later_decision_at_the_same_engine() -> None:
    bench, peer = Bench(), Bench(scheduler="scheduler-2")
    bench.join("a")
    peer.join("a")
    changes = [
        bench.decide(bench.prompt(1, blocks=4, request_id="r", decision=number)).holds[0].change for number in (1, 2)
    ]
    books = peer.pool.books
    assert [books.apply(change, "scheduler-1", peer.now) for change in (*changes, *changes)] == [
        True,
        True,
        False,
        False,
    ]
    (hold,) = books
    assert hold.change.decision == 2


def test_an_answer_takes_no_more_room_than_the_engines_cache_has() -> None:
    index = PrefixIndex()
    life = index.join(kv_blocks=6)
    index.lay_out([life])
    index.add_answer(life, range(4), range(10, 14), 1.0)
    assert index.held(life) == 6
    # The end is dropped first, as in the engine.
    assert index.match(np.array([0, 1, 2, 3, 10, 11, 12, 13], dtype=np.uint64)).tolist() == [6.0]
    assert index.memory().holdings == 6
