"""Late binding: who waits, who goes first, and what ends a wait."""

import numpy as np
import pytest

from pointsman_delay.pass_model import PassModel
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.late_binding import Because, Bound, PeerRequest
from pointsman_scheduler.domain.late_binding.peers import Peers
from pointsman_scheduler.domain.outcome import Postponed, Scheduled
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_testing.one_engine import PREFILL_MS, TOKEN_MS, teach_passes
from pointsman_testing.scheduler_bench import Bench

NO_BLOCKS: Blocks = np.zeros(0, dtype=np.uint64)


class Room(Bench):
    """A pool whose pass model is learnt: a pass takes 15 ms and 20 µs for each prompt token."""

    def __init__(self, *names: str, **settings: object) -> None:
        super().__init__({"late_binding": settings} if settings else {})
        self.join(*names)
        self.waiting: list[ScheduleRequest] = []
        self.serve()  # lays the shadows out
        teach_passes(self.model)
        self.now += 10.0
        for name in names:
            self.hear(name)

    @property
    def model(self) -> PassModel:
        """As learnt so far; a rival may replace it."""
        (producer,) = [each for each in self.policy.producers if isinstance(each, DelayPrediction)]
        return producer.estimator.best.model

    def speeds(self, **speeds: float) -> None:
        """The duration of each worker's passes, divided by the pool's."""
        (producer,) = [each for each in self.policy.producers if isinstance(each, DelayPrediction)]
        producer.estimator.best.speeds = [speeds[name] for name in self.pool.fleet.names]

    def offer(self, tokens: int, **facts: object) -> Scheduled | Postponed:
        """A request comes."""
        request = self.request(prompt_tokens=tokens, **facts)
        outcome = self.pool.decide(request, self.now, 1, self.policy)
        assert isinstance(outcome, Scheduled | Postponed)
        return outcome

    def waits(self, tokens: int, **facts: object) -> ScheduleRequest:
        """A request comes and waits."""
        outcome = self.offer(tokens, **facts)
        assert isinstance(outcome, Postponed)
        return outcome.request

    def goes(self, tokens: int, **facts: object) -> tuple[ScheduleRequest, str]:
        """A request comes and is sent to a worker."""
        request = self.request(prompt_tokens=tokens, **facts)
        return request, self.chosen(request)

    def bound(self) -> list[Bound]:
        """The requests that wait no longer, now on the books."""
        left = self.pool.bind(self.now)
        for each in left:
            outcome = self.pool.decide(each.request, self.now, 1, self.policy)
            assert isinstance(outcome, Scheduled)
            assert not each.worker or outcome.endpoints[0].name == each.worker
        return left

    def first_token(self, request: ScheduleRequest, worker: str) -> None:
        """The answer begins."""
        self.pool.books.started(request.key, worker, 5.0, self.now)


def test_a_request_for_a_free_engine_goes_at_once() -> None:
    room = Room("a", "b")
    assert isinstance(room.offer(4000), Scheduled)
    assert isinstance(room.offer(4000), Scheduled)
    assert not room.bound()


def test_a_request_waits_while_all_engines_compute_prompts_and_goes_when_one_is_free() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    later = room.waits(4000)
    room.now += 0.010
    assert not room.bound()
    room.now += 0.166
    room.first_token(first, worker)
    (left,) = room.bound()
    assert (left.request, left.worker, left.because) == (later, "a", Because.TURN)
    assert left.waited_ms == pytest.approx(176.0, abs=1.0)


def test_the_shortest_goes_first_and_a_long_one_goes_alone() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    long, short = room.waits(7000), room.waits(300)
    room.now += 0.176
    room.first_token(first, worker)
    assert [each.request for each in room.bound()] == [short]
    room.now += 0.022
    room.first_token(short, worker)
    assert [each.request for each in room.bound()] == [long]


def test_short_requests_share_a_pass() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    # Without a long one that waits, they would go to the only engine at once.
    room.waits(7000)
    requests = [room.waits(100 + number) for number in range(4)]
    room.now += 0.176
    room.first_token(first, worker)
    left = room.bound()
    assert [each.request for each in left] == requests
    assert [each.because for each in left] == [Because.TURN, Because.PASS, Because.PASS, Because.PASS]


def test_a_short_request_for_the_only_engine_goes_at_once_and_a_long_one_waits() -> None:
    room = Room("a")
    room.goes(8000)
    room.goes(150)
    room.waits(4000)
    # One that would fill the next pass with others waits, too, and so does one behind a request that waits.
    room.waits(150)


def test_waiting_requests_with_one_new_prefix_go_to_one_engine() -> None:
    room = Room("a", "b")
    busy = [room.goes(8000), room.goes(8000)]
    blocks = np.arange(1, 100, dtype=np.uint64)
    family = [room.waits(6400, blocks=blocks) for _ in range(3)]
    room.now += 0.176
    for request, worker in busy:
        room.first_token(request, worker)
    left = room.bound()
    assert {each.request.request_id for each in left} <= {each.request_id for each in family}
    for _ in range(100):
        room.now += 0.01
        left += room.bound()
    assert len(left) == 3
    assert len({each.worker for each in left}) == 1


def test_a_short_request_goes_to_the_fast_engine_before_the_long_one_that_waits_for_it() -> None:
    room = Room("slow", "fast")
    room.speeds(slow=1.5, fast=1.0)
    busy = [room.goes(8000, workers=(name,)) for name in ("slow", "fast")]
    room.waits(7900)
    short = room.waits(600)
    room.now += 0.3
    for request, worker in busy:
        room.first_token(request, worker)
    left = room.bound()
    assert [each.worker for each in left if each.request is short] == ["fast"]


def test_a_request_behind_a_higher_priority_is_planned_for_another_engine() -> None:
    room = Room("a", "b")
    first, worker = room.goes(8000)
    room.now += 0.070
    _, later = room.goes(8000)
    assert {worker, later} == {"a", "b"}
    important, short = room.waits(7000, priority=5), room.waits(600)
    room.now += 0.106
    room.first_token(first, worker)
    assert [each.request for each in room.bound()] == [important]
    room.now += 0.070
    assert [(each.request, each.worker) for each in room.bound()] == [(short, later)]


def test_a_higher_priority_goes_first_however_long_it_is() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    room.waits(300)
    important = room.waits(7000, priority=5)
    room.now += 0.176
    room.first_token(first, worker)
    assert room.bound()[0].request == important


def test_no_stream_of_short_requests_keeps_a_long_one_waiting_beyond_its_limit() -> None:
    room = Room("a", slowdown=3.0)
    current, worker = room.goes(4000)
    long = room.waits(7900)
    came = room.now
    first_come_s = (95.0 + PREFILL_MS + 7900 * TOKEN_MS) / 1000
    for _ in range(200):
        room.waits(3000)
        room.now += 0.075
        room.first_token(current, worker)
        left = room.bound()
        if left:
            current = left[-1].request
        if any(each.request is long for each in left):
            assert [each.because for each in left if each.request is long] == [Because.LIMIT]
            break
    assert long.bound is not None
    assert room.now - came <= 3.0 * first_come_s + 0.1


def test_a_request_whose_client_hangs_up_leaves() -> None:
    room = Room("a")
    room.goes(8000)
    later = room.waits(4000)
    assert room.pool.binder.cancel(later.key)
    assert not room.pool.binder.cancel(later.key)
    assert room.pool.look_at(room.now) is None


def test_nothing_waits_while_the_model_is_not_trusted_and_all_go_once_it_is_not() -> None:
    room = Room("a")
    room.goes(8000)
    later = room.waits(4000)
    room.model.relative_error = 0.9
    (left,) = room.bound()
    assert (left.request, left.because) == (later, Because.BLIND)
    assert isinstance(room.offer(4000), Scheduled)


def test_all_go_when_the_engines_of_the_pool_change() -> None:
    room = Room("a")
    room.goes(8000)
    room.waits(4000)
    room.join("b")
    assert [each.because for each in room.bound()] == [Because.BLIND]


def test_an_engine_that_is_late_by_its_prediction_keeps_no_request_waiting() -> None:
    room = Room("a")
    room.goes(8000)
    later = room.waits(4000)
    room.now += 5.0  # its first token should have come long ago
    assert [each.request for each in room.bound()] == [later]


def test_the_oldest_goes_when_too_many_wait() -> None:
    room = Room("a", max_requests=2)
    room.goes(8000)
    oldest, *_ = [room.waits(4000) for _ in range(3)]
    (left,) = room.bound()
    assert (left.request, left.because) == (oldest, Because.FULL)


def test_when_too_many_wait_each_of_those_that_go_gets_the_engine_that_is_best_then() -> None:
    room = Room("a", "b", max_requests=2)
    room.goes(7000)
    room.goes(8000)
    oldest = [room.waits(4000) for _ in range(6)][:4]
    assert [each.request for each in room.bound()] == oldest
    went = [hold.worker.name for each in oldest if (hold := room.pool.books.find_reservation(each.key)) is not None]
    assert sorted(went) == ["a", "a", "b", "b"]


def test_requests_for_adapters_with_a_given_worker_and_retries_do_not_wait() -> None:
    room = Room("a")
    room.goes(8000)
    for facts in ({"workers": ("a",)}, {"attempt": 2}):
        assert isinstance(room.offer(4000, **facts), Scheduled)


def test_nothing_waits_where_it_is_switched_off_or_another_scorer_decides() -> None:
    off = Room("a", enabled=False)
    off.goes(8000)
    assert isinstance(off.offer(4000), Scheduled)
    assert Bench({"scorers": [{"use": "least-delay"}, {"use": "session"}]}).policy.late_binding is None


def test_a_pass_is_left_to_a_shorter_request_of_another_scheduler_until_it_is_forgotten() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    later = room.waits(7000)
    room.now += 0.176
    at = room.now * 1000.0
    theirs = PeerRequest("a", 300.0, 300, 0, at + 10_000.0, "edge-2", "theirs", at, None, 64, b"")
    room.pool.binder.peer("scheduler-2", [theirs], at)
    room.first_token(first, worker)
    assert not room.bound()
    room.now += 1.0
    assert [each.request for each in room.bound()] == [later]


def _report(room: Room, tokens: int, blocks: Blocks = NO_BLOCKS) -> None:
    """Another scheduler reports a request that waits there."""
    at = room.now * 1000.0
    theirs = PeerRequest(
        "a", float(tokens), tokens, 0, at + 10_000.0, "edge-2", "theirs", at, None, 64, blocks.tobytes()
    )
    room.pool.binder.peer("scheduler-2", [theirs], at)


def test_an_engine_that_the_plan_gave_to_another_schedulers_request_gets_no_other_before_that_is_reported() -> None:
    room, blocks = Room("a", "b"), np.arange(1, 9, dtype=np.uint64)
    holder = room.pool.fleet.find("b")
    assert holder is not None
    room.pool.index.stored(holder.life, blocks, room.now)
    short, long = (room.goes(tokens, workers=(name,))[0] for name, tokens in (("a", 2000), ("b", 8000)))
    own = room.waits(2000)
    room.now += 0.055
    _report(room, 600, blocks)
    room.first_token(short, "a")
    assert not room.bound()
    # Sooner than predicted, the engine that suits the other scheduler's request best is free: it would go there now.
    room.now += 0.0005
    room.first_token(long, "b")
    assert [(each.request, each.worker) for each in room.bound()] == [(own, "b")]


def test_an_engine_is_free_again_once_the_request_of_the_other_scheduler_is_gone() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    own = room.waits(2000)
    room.now += 0.176
    _report(room, 600)
    room.first_token(first, worker)
    assert not room.bound()
    room.now += 0.0005
    room.pool.binder.peer("scheduler-2", [], room.now * 1000.0)
    assert [each.request for each in room.bound()] == [own]


def test_an_engine_is_free_again_when_the_other_scheduler_reports_nothing_in_time() -> None:
    room = Room("a")
    first, worker = room.goes(8000)
    room.waits(2000)
    room.now += 0.176
    _report(room, 600)
    room.first_token(first, worker)
    assert not room.bound()
    shorter = room.waits(100)
    room.now += 0.006
    assert shorter in [each.request for each in room.bound()]


def test_the_blocks_of_a_peers_request_are_kept_from_its_first_report() -> None:
    peers, blocks = Peers(), np.arange(1, 94, dtype=np.uint64)
    first = PeerRequest("a", 6000.0, 6000, 0, 9_000.0, "edge-2", "theirs", 0.0, None, 64, blocks.tobytes())
    peers.report("scheduler-2", [first], 0.0)
    peers.report("scheduler-2", [first._replace(blocks=b"", worker="b")], 200.0)
    (found,) = peers.waiting(("a", "b"), 400.0)
    assert (found.row, found.request.blocks.tolist()) == (1, blocks.tolist())
    assert not peers.waiting(("a", "b"), 500.0)
    peers.report("scheduler-2", [], 500.0)
    assert not peers.waiting(("a", "b"), 500.0)


def test_with_other_schedulers_a_burst_counts_their_part_of_it() -> None:
    room = Room("a", "b")
    for _ in range(40):
        for _ in range(2):
            outcome = room.offer(200)
            if isinstance(outcome, Scheduled):
                room.pool.books.completed(outcome.holds[0].request, room.now, ok=False)
            else:
                room.pool.binder.cancel(outcome.request.key)
        room.now += 3.0
        for name in ("a", "b"):
            room.hear(name)
    assert isinstance(room.offer(2000), Scheduled)
    room.now += 3.0
    for name in ("a", "b"):
        room.hear(name)
    room.pool.binder.heard("scheduler-2", room.now * 1000.0)
    room.waits(2000)


def test_once_requests_come_in_bursts_the_first_waits_for_the_others() -> None:
    room = Room("a", "b")
    for _ in range(40):
        for tokens in (200, 200, 200, 200, 200, 200):
            outcome = room.offer(tokens)
            if isinstance(outcome, Scheduled):
                room.pool.books.completed(outcome.holds[0].request, room.now, ok=False)
            else:
                room.pool.binder.cancel(outcome.request.key)
        room.now += 3.0
        for name in ("a", "b"):
            room.hear(name)
    requests = [room.waits(tokens) for tokens in (7000, 6000, 400, 300)]
    room.now += 0.006
    left = room.bound()
    assert {each.request.request_id for each in left} >= {requests[2].request_id, requests[3].request_id}
    assert len(left) < len(requests)


def test_waiting_requests_go_when_an_engine_left_and_came_back() -> None:
    room = Room("a", "b")
    for _ in range(2):
        room.goes(8000)
    later = room.waits(4000)
    room.pool.remove("b", room.now)
    room.goes(100, attempt=2)  # decided without b, at once
    room.join("b", boot_id="life-2")
    (left,) = room.bound()
    assert (left.request, left.because) == (later, Because.BLIND)


def test_no_other_request_waits_while_some_wait_for_engines_as_they_were() -> None:
    room = Room("a", "b")
    for _ in range(2):
        room.goes(8000)
    earlier = room.waits(4000)
    room.pool.remove("a", room.now)
    assert isinstance(room.offer(4000), Scheduled)
    (left,) = room.bound()
    assert (left.request, left.because) == (earlier, Because.BLIND)
