"""Schedulers that join, or missed something, know what the others know."""

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from pointsman_contracts.scheduling import ReservationChange, SchedulerStateQuery
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_plugins.scheduling.worker import HoldKey
from pointsman_scheduler.domain import state as parts
from pointsman_scheduler.domain.state import part_of, take_prefixes, take_reservations
from pointsman_testing.scheduler_bench import Bench

WORKERS = ("w0", "w1", "w2")
BY_LOAD = {
    "scorers": [
        {"use": "queue", "weight": 2},
        {"use": "kv-utilization", "weight": 2},
        {"use": "prefix-cache", "weight": 3},
    ]
}


def told(source: Bench, target: Bench, own: bool = False) -> int:
    """Tell all reservations in parts; the number of parts."""
    count, after = 0, ""
    while True:
        state = part_of(source.pool, SchedulerStateQuery(pool="llama", own=own, after=after), source.now)
        count += 1
        take_reservations(target.pool, state, target.now)
        if not state.more:
            return count
        after = state.reservations[-1].change.request_id


def told_prefixes(source: Bench, target: Bench, worker: str) -> int:
    count = offset = 0
    while True:
        query = SchedulerStateQuery(pool="llama", worker=worker, offset=offset)
        state = part_of(source.pool, query, source.now)
        count += 1
        offset += take_prefixes(target.pool, worker, state, target.now)
        if not state.more:
            return count


def books(bench: Bench) -> dict[HoldKey, tuple[str, str, bool, int]]:
    return {
        hold.key: (hold.worker.name, hold.scheduler, hold.confirmed, hold.change.uncached_tokens)
        for hold in bench.pool.books
    }


def pair() -> tuple[Bench, Bench]:
    one, two = Bench(), Bench(scheduler="scheduler-2")
    for bench in (one, two):
        bench.join(*WORKERS)
    return one, two


@pytest.mark.parametrize("part_bytes", [1, 2000, 10**6])
def test_a_scheduler_that_joins_has_the_same_books(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    one, two = pair()
    for number in range(30):
        request = one.prompt(family=number % 4, blocks=5, own_blocks=2)
        worker = one.chosen(request, seed=number)
        if number % 3 == 0:
            one.pool.books.started(request.key, worker, 5.0, one.now)
        if number % 5 == 0:
            one.pool.books.completed(request.key, one.now, ok=True)
    count = told(one, two)
    assert (count > 1) == (part_bytes < 10**6)
    assert books(two) == books(one)
    assert [w.prefill_tokens for w in two.pool.fleet] == [w.prefill_tokens for w in one.pool.fleet]


@pytest.mark.requirement("S1-37")
@pytest.mark.parametrize("part_bytes", [13 * 10, 10**6])
def test_a_scheduler_that_joins_knows_the_same_prefixes(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    one, two = pair()
    homes = {family: one.serve(one.prompt(family=family, blocks=20), seed=family) for family in range(8)}
    for worker in WORKERS:
        told_prefixes(one, two, worker)
    for family, home in homes.items():
        outcome = two.decide(two.prompt(family=family, blocks=20))
        assert (outcome.endpoints[0].name, outcome.cached_tokens) == (home, 1280)


def test_the_most_recently_used_prefixes_are_sent_first() -> None:
    one, _ = pair()
    for family in (1, 2):
        one.now += 1
        request = one.prompt(family=family, blocks=10)
        assert one.place(request, "w0")
        one.pool.books.started(request.key, "w0", 1.0, one.now)
    one.now += 1
    state = part_of(one.pool, SchedulerStateQuery(pool="llama", worker="w0"), one.now)
    ages = np.frombuffer(state.ages, dtype="<f4")
    assert ages.tolist() == [1.0] * 10 + [2.0] * 10


def test_requests_that_end_while_the_state_is_sent_stay_ended() -> None:
    one, two = pair()
    before, after = one.request(), one.request()
    one.decide(before)
    one.decide(after)
    two.pool.books.completed(before.key, two.now, ok=True)
    told(one, two)
    two.pool.books.completed(after.key, two.now, ok=True)
    told(one, two)
    assert books(two) == {}


@pytest.mark.parametrize("part_bytes", [1, 10**6])
def test_a_scheduler_that_joins_has_the_requests_of_every_edge_though_their_ids_are_the_same(
    part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", part_bytes)
    one, two = pair()
    for request_id in ("a", "b", "c"):
        for edge in ("edge-1", "edge-2", "edge-3"):
            one.decide(one.request(request_id=request_id, edge=edge))
    two.pool.books.completed(("edge-2", "b"), two.now, ok=True)
    told(one, two)
    assert books(two) == {key: hold for key, hold in books(one).items() if key != ("edge-2", "b", "")}
    assert len(books(two)) == 8


def test_prefixes_of_another_life_are_not_taken_over() -> None:
    one, two = pair()
    home = one.serve(one.prompt(family=1, blocks=20))
    two.join(home, boot_id="life-2")
    assert told_prefixes(one, two, home) == 1
    assert two.decide(two.prompt(family=1, blocks=20)).cached_tokens == 0


def test_a_scheduler_tells_only_its_own_reservations_when_asked_for_those() -> None:
    one, two = pair()
    three = Bench(scheduler="scheduler-3")
    three.join(*WORKERS)
    own, other = one.request(), two.request()
    one.decide(own)
    for hold in two.decide(other).holds:
        one.pool.books.apply(hold.change, "scheduler-2", one.now)
    told(one, three, own=True)
    assert list(books(three)) == [(*own.key, "")]


def test_the_state_of_an_unknown_worker_is_empty() -> None:
    one, two = pair()
    assert told_prefixes(one, two, "w9") == 1


def test_the_part_of_a_large_state_fits_the_bus() -> None:
    one = Bench()
    one.join(*WORKERS, kv_blocks=10**6)
    for number in range(200):
        one.serve(one.prompt(family=number, blocks=300), seed=number)
    for number in range(300):
        one.decide(one.prompt(family=number, blocks=300), seed=number)
    for query in (
        SchedulerStateQuery(pool="llama"),
        SchedulerStateQuery(pool="llama", worker="w0"),
    ):
        state = part_of(one.pool, query, one.now)
        assert len(state.encode()) < 2**20


def reuse(count: int, requests: int = 1500, late: int = 5) -> float:
    """Part of the prompt tokens that the chosen engines hold already, when `count` schedulers take turns and hear of
    each other `late` requests later. Conversations grow turn by turn, as chats do."""
    benches = [Bench(BY_LOAD, scheduler=f"scheduler-{number}") for number in range(count)]
    names = [f"w{number}" for number in range(8)]
    for bench in benches:
        bench.join(*names, kv_blocks=4096)
    dice = np.random.default_rng(5)
    turns: dict[int, int] = {}
    truth: dict[str, set[int]] = {name: set() for name in names}
    wire: deque[tuple[int, Callable[[Bench], object]]] = deque()
    cached = total = 0
    for number in range(requests):
        while wire and wire[0][0] <= number:
            _, tell = wire.popleft()
            for bench in benches:
                tell(bench)
        talk = int(dice.integers(0, 60))
        turns[talk] = turns.get(talk, 0) % 12 + 1
        bench = benches[number % count]
        request = bench.prompt(family=talk, blocks=5 * turns[talk])
        request.request_id = f"request-{number}"
        outcome = bench.decide(request, seed=number)
        worker = outcome.endpoints[0].name
        blocks: list[int] = request.blocks.tolist()
        cached += sum(block in truth[worker] for block in blocks)
        total += len(blocks)
        truth[worker].update(blocks)
        for hold in outcome.holds:
            change = hold.change
            wire.append((number + late, partial(reserved, change, bench.pool.scheduler)))
        wire.append((number + late, partial(began, request.key, worker)))
        wire.append((number + late, partial(ended, request.key)))
    return cached / total


def reserved(change: ReservationChange, scheduler: str, bench: Bench) -> None:
    if bench.pool.scheduler != scheduler:
        bench.pool.books.apply(change, scheduler, bench.now)


def began(request: RequestKey, worker: str, bench: Bench) -> None:
    bench.pool.books.started(request, worker, 5.0, bench.now)


def ended(request: RequestKey, bench: Bench) -> None:
    bench.now += 0.01
    for worker in bench.pool.fleet.names:
        if int(bench.now * 100) % 10 == 0:
            bench.hear(worker)
    bench.pool.books.completed(request, bench.now, ok=True)


@pytest.mark.requirement("S1-42")
def test_three_schedulers_find_as_many_prefixes_as_one() -> None:
    one, three = reuse(1), reuse(3)
    assert one > 0.5
    assert three >= 0.98 * one
