"""Requests that would push out of a cache what is in use, or about to be, wait for room or go where there is room."""

import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest

from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.cache_room.room import CacheRoom, RoomNeeded
from pointsman_scheduler.domain.late_binding import Because, Bound
from pointsman_scheduler.domain.outcome import Postponed, Scheduled
from pointsman_testing.scheduler_bench import Bench, explained

CACHE = 16384
"""Blocks of each engine."""
BIG = 7000
"""Blocks of a prompt that takes nearly half of a cache."""


class Room(Bench):
    def __init__(self, settings: Mapping[str, object] | None = None, engines: tuple[str, ...] = ("a",)) -> None:
        super().__init__(settings, scheduler="scheduler-1")
        self.join(*engines, kv_blocks=CACHE)

    def sent(self, request: ScheduleRequest) -> str | None:
        """The engine that the request goes to; None when it waits."""
        outcome = self.pool.decide(request, self.now, 1, self.policy)
        if isinstance(outcome, Postponed):
            return None
        assert isinstance(outcome, Scheduled)
        return outcome.endpoints[0].name

    def end(self, request: ScheduleRequest, tokens: int = 100) -> None:
        """The request is answered."""
        worker = self.pool.books.reservations_of(request.key)[0].worker.name
        self.pool.books.started(request.key, worker, 100.0, self.now)
        self.pool.books.completed(request.key, self.now, ok=True, output_tokens=tokens, duration_ms=1000.0)

    def bound(self) -> list[tuple[Bound, str]]:
        """The requests that leave now, each with its engine."""
        left: list[tuple[Bound, str]] = []
        while found := self.pool.bind(self.now):
            for each in found:
                outcome = self.pool.decide(each.request, self.now, 1, self.policy)
                assert isinstance(outcome, Scheduled)
                left.append((each, outcome.endpoints[0].name))
        return left

    def after(self, seconds: float) -> list[tuple[Bound, str]]:
        """The requests that leave after so many seconds."""
        self.now += seconds
        for name in [*self.pool.fleet.names]:
            self.hear(name)
        return self.bound()


def test_a_new_prompt_waits_while_open_requests_take_the_cache_and_leaves_when_one_ends() -> None:
    room = Room()
    first, second, third = room.prompt(1, BIG), room.prompt(2, BIG), room.prompt(3, BIG)
    assert room.sent(first) == room.sent(second) == "a"
    assert room.sent(third) is None
    assert room.after(1.0) == []
    room.end(first)
    assert room.after(1.0) == []  # the session of the first is about to go on
    (left,) = room.after(60.0)
    assert (left[0].request, left[0].because, left[1]) == (third, Because.ROOM, "a")


def test_a_session_that_goes_on_has_its_place_and_a_new_one_has_to_wait() -> None:
    room = Room()
    first = room.prompt(1, BIG)
    assert room.sent(first) == room.sent(room.prompt(2, BIG)) == "a"
    room.end(first)
    room.after(1.0)
    assert room.sent(room.prompt(3, BIG)) is None
    assert room.sent(room.prompt(1, BIG, own_blocks=10)) == "a"


def test_a_session_that_comes_back_late_needs_no_room_for_the_tokens_that_its_engine_still_holds() -> None:
    room = Room()
    first, other = room.prompt(1, BIG), room.prompt(3, 5000)
    assert room.sent(first) == "a"
    room.end(first)
    room.after(120.0)
    assert room.sent(room.prompt(2, 4000)) == room.sent(other) == "a"
    room.end(other)
    room.after(1.0)
    assert room.sent(room.prompt(4, BIG)) is None
    assert room.sent(room.prompt(1, BIG, own_blocks=10)) == "a"


def test_a_new_prompt_goes_to_an_engine_that_has_room_and_the_others_are_explained() -> None:
    room = Room(engines=("a", "b"))
    for family in range(3):
        assert room.sent(room.prompt(family, BIG)) is not None
    full = max("ab", key=lambda name: len(room.pool.fleet.find(name).holds))  # pyright: ignore[reportOptionalMemberAccess]
    outcome = room.decide(room.prompt(3, BIG))
    (run,), _ = explained(outcome)
    assert outcome.endpoints[0].name != full
    assert run.candidates.filtered[full].startswith("cache-room: ")
    assert "of its KV cache is taken" in run.candidates.filtered[full]
    assert room.sent(room.prompt(4, BIG)) is None


def test_an_engine_that_is_gone_has_room_and_gets_nothing_while_another_serves() -> None:
    """It would take every request while its successor starts."""
    room = Room(engines=("a", "b"))
    room.hear("b", state="unreachable")
    first = room.prompt(1, BIG)
    assert room.sent(first) == room.sent(room.prompt(2, BIG)) == "a"
    third = room.prompt(3, BIG)
    assert room.sent(third) is None
    assert room.after(1.0) == []
    room.hear("a", state="unreachable")
    assert room.sent(room.prompt(4, BIG)) == "b"


def test_a_shared_beginning_counts_once() -> None:
    room = Room()
    assert room.sent(room.prompt(1, 9000, own_blocks=20)) == "a"
    for _ in range(5):
        assert room.sent(room.prompt(1, 9000, own_blocks=20)) == "a"


def test_a_prompt_larger_than_what_is_left_goes_to_an_engine_without_requests() -> None:
    room = Room()
    assert room.sent(room.prompt(1, CACHE - 4)) == "a"


def test_the_shortest_goes_first_until_another_has_waited_too_long() -> None:
    room = Room({"cache_room": {"patience": "30s"}})
    there = [room.prompt(family, 3500) for family in range(10, 14)]
    for each in there:
        assert room.sent(each) == "a"
    long, short = room.prompt(1, 9000), room.prompt(2, 3000)
    assert room.sent(long) is room.sent(short) is None
    room.end(there[0])
    (left,) = room.after(20.0)
    assert left[0].request is short
    room.end(there[1])
    room.after(20.0)
    later = room.prompt(3, 3000)
    assert room.sent(later) is None  # the engine is reserved for the long one
    room.end(there[2])
    room.end(short)
    assert room.after(0.2) == []
    assert next(each.request for each, _ in room.after(30.0)) is long


@pytest.mark.parametrize("leaves", ["closing", "disabled"])
def test_all_leave_when_the_scheduler_closes_or_the_policy_no_longer_waits(leaves: str) -> None:
    room = Room()
    assert room.sent(room.prompt(1, BIG)) == room.sent(room.prompt(3, BIG)) == "a"
    waiting = room.prompt(2, BIG)
    assert room.sent(waiting) is None
    assert len(room.pool.binder) == 1
    if leaves == "closing":
        bound = room.pool.binder.leave_now(waiting.key, room.now * 1000.0)
        assert bound is not None
        assert bound.because is Because.CLOSING
    else:
        room.use({"cache_room": {"enabled": False}})
        assert [each.because for each, _ in room.bound()] == [Because.BLIND]
    assert len(room.pool.binder) == 0


def test_a_request_that_is_over_waits_no_more() -> None:
    room = Room()
    assert room.sent(room.prompt(1, BIG)) == room.sent(room.prompt(3, BIG)) == "a"
    waiting = room.prompt(2, BIG)
    assert room.sent(waiting) is None
    assert room.pool.look_at(room.now) is not None
    assert room.pool.binder.cancel(waiting.key)
    assert room.pool.look_at(room.now) is None


def test_answers_that_are_not_streamed_wait_for_room_too() -> None:
    room = Room()
    assert room.sent(room.prompt(1, BIG)) == room.sent(room.prompt(3, BIG)) == "a"
    assert room.sent(room.prompt(2, BIG, stream=False)) is None


def test_nothing_waits_where_the_size_of_the_caches_is_unknown_or_waiting_is_off() -> None:
    unknown = Bench()
    unknown.join("a", kv_blocks=None)
    off = Room({"cache_room": {"enabled": False}})
    for bench in (unknown, off):
        for family in range(6):
            assert isinstance(bench.pool.decide(bench.prompt(family, BIG), bench.now, 1, bench.policy), Scheduled)


def test_an_engine_that_leaves_takes_its_sessions_along() -> None:
    room = Room(engines=("a", "b"))
    first, second, third = (room.prompt(family, BIG) for family in range(3))
    engines = [room.sent(each) for each in (first, second, third)]
    assert None not in engines
    room.end(first)
    room.pool.remove(engines[0] or "", room.now)
    room.pool.sweep(room.now)
    room.now += 3600.0
    room.pool.sweep(room.now)
    (left,) = {"a", "b"} - {engines[0]}
    room.hear(left)
    observer = room.policy.room
    assert observer is not None
    assert observer.room.find_continued(first.blocks) is None


def test_room_is_counted_down_to_nothing_when_all_requests_end_and_their_sessions_are_over() -> None:
    room = Room()
    requests = [room.prompt(family, 2000, own_blocks=family) for family in range(6)]
    for each in requests:
        assert room.sent(each) == "a"
    for each in requests:
        room.end(each)
    for _ in range(2):
        room.after(3600.0)
        room.pool.sweep(room.now)
    assert room.policy.room is not None
    worker = room.pool.fleet.find("a")
    assert worker is not None
    assert room.policy.room.room.taken_share(worker.life) == 0.0


def test_a_request_that_waits_for_room_goes_to_an_engine_that_came_meanwhile() -> None:
    room = Room(engines=("b",))
    assert room.sent(room.prompt(1, BIG)) == room.sent(room.prompt(2, BIG)) == "b"
    third = room.prompt(3, BIG)
    assert room.sent(third) is None
    room.join("a", kv_blocks=CACHE)
    assert room.sent(room.prompt(4, 20)) is not None  # the index is laid out for both
    assert [each.request for each, _ in room.after(0.1)] == [third]


def test_a_session_takes_at_most_eight_hundred_bytes() -> None:
    room, dice = CacheRoom(), np.random.default_rng(1)
    keys = [("edge-1", f"request-{number}", "") for number in range(2000)]
    prompts = dice.integers(1, 2**63, size=(len(keys), 40), dtype=np.uint64)
    tracemalloc.start()
    try:
        for number, key in enumerate(keys):
            needed = RoomNeeded(key, number % 8, 1_048_576.0, 20_000, 20_000, f"flow-{number % 400}")
            room.take_room(needed, prompts[number], 0.0)
        for number, key in enumerate(keys):
            room.give_room_back(key, 20.0, int(prompts[number][-1]), 300)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(keys) <= 800
