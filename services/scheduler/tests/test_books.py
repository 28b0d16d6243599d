"""The books stay true whatever is lost, late, told twice or told in another order."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.scheduling import ReservationChange
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_scheduler.domain.ledger import ASK_AFTER_S, ASK_AGAIN_S, PEERS_TIMES, SURPLUS_AFTER_S
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_testing.scheduler_bench import Bench

WORKERS: tuple[str, ...] = ("w0", "w1", "w2")
EDGES = ("edge-1", "edge-2")


def everything(bench: Bench) -> list[tuple[int, int, int]]:
    return [(worker.open, worker.prefill_tokens, worker.context_tokens) for worker in bench.pool.fleet]


def test_a_reservation_that_arrives_after_the_end_of_its_request_does_not_count() -> None:
    one, two = Bench(), Bench(scheduler="scheduler-2")
    for bench in (one, two):
        bench.join(*WORKERS)
    request = one.request()
    change = one.decide(request).holds[0].change
    two.pool.books.completed(request.key, two.now, ok=True)
    assert not two.pool.books.apply(change, "scheduler-1", two.now)
    assert everything(two) == [(0, 0, 0)] * 3


def test_requests_whose_prefix_was_never_settled_are_counted() -> None:
    bench = Bench()
    bench.join("w0")
    registry = CollectorRegistry()
    SchedulerMetrics(registry, lambda: [bench.pool])
    life = next(iter(bench.pool.fleet)).life
    bench.pool.index.write(life, np.arange(3, dtype=np.uint64), bench.now, "never-settled")
    for later, count in ((1199, 0), (1201, 1)):
        bench.pool.sweep(bench.now + later)
        assert registry.get_sample_value("pointsman_scheduler_prefix_abandoned_total", {"pool": "llama"}) == count


def test_a_client_may_use_a_request_id_again() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    for _ in range(3):
        request = bench.request(request_id="again")
        bench.decide(request)
        assert len(bench.pool.books) == 1
        bench.pool.books.completed(("edge-1", "again"), bench.now, ok=True)
        assert everything(bench) == [(0, 0, 0)] * 3


def test_two_edges_requests_with_one_id_are_two_on_the_books_of_every_scheduler() -> None:
    one, two = Bench(), Bench(scheduler="scheduler-2")
    for bench in (one, two):
        bench.join("w0", "w1")
    requests = [one.prompt(family=number, blocks=4, request_id="same", edge=f"edge-{number}") for number in (1, 2)]
    outcomes = [one.decide(request) for request in requests]
    assert [outcome.held for outcome in outcomes] == [False, False]
    assert {outcome.endpoints[0].name for outcome in outcomes} == {"w0", "w1"}
    for outcome in outcomes:
        for hold in outcome.holds:
            assert two.pool.books.apply(hold.change, "scheduler-1", two.now)
    assert sum(worker.open for worker in one.pool.fleet) == sum(worker.open for worker in two.pool.fleet) == 2


def test_the_outcome_of_one_edges_request_is_nothing_to_anothers_with_its_id() -> None:
    bench = Bench()
    bench.join("w0", "w1")
    requests = [bench.prompt(family=number, blocks=4, request_id="same", edge=f"edge-{number}") for number in (1, 2)]
    first, second = [bench.chosen(request) for request in requests]
    bench.pool.books.started(requests[0].key, first, 5.0, bench.now)
    assert [hold.confirmed for hold in bench.pool.books] == [True, False]
    bench.fail("same", second, source="edge-2")
    assert [(hold.change.edge, hold.worker.name) for hold in bench.pool.books] == [("edge-1", first)]
    again = bench.decide(bench.prompt(family=2, blocks=4, request_id="same", edge="edge-2", attempt=2))
    bench.pool.books.completed(requests[0].key, bench.now, ok=True)
    assert [hold.change.edge for hold in bench.pool.books] == ["edge-2"]
    released = msgspec.structs.replace(again.holds[0].with_op("release"), edge="edge-1")
    assert not bench.pool.books.apply(released, "scheduler-2", bench.now)
    bench.pool.books.edge_gone("edge-1", bench.now)
    assert [hold.change.edge for hold in bench.pool.books] == ["edge-2"]


def test_a_reservation_of_a_life_or_a_worker_that_is_not_known_does_not_count() -> None:
    bench = Bench()
    bench.join("w0")
    bench.join("w0", boot_id="life-2")
    assert not bench.place(bench.request(), "w0")
    assert not bench.place(bench.request(), "w9")
    assert everything(bench) == [(0, 0, 0)]


def test_schedulers_that_hear_two_choices_in_different_orders_agree() -> None:
    one = ReservationChange(op="reserve", request_id="r", worker="w0", boot_id="life-1", prompt_tokens=10)
    two = replace(one, worker="w1", attempt=2)
    three = replace(two, worker="w2")
    told = [(one, "a"), (two, "b"), (three, "c")]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)):
        bench = Bench()
        bench.join(*WORKERS)
        for position in order:
            change, scheduler = told[position]
            bench.pool.books.apply(change, scheduler, bench.now)
        assert [worker.open for worker in bench.pool.fleet] == [0, 0, 1], order


def test_a_fallback_takes_the_reservation_along() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    request = bench.prompt(family=1, blocks=4)
    first, second, *_ = (worker.name for worker in bench.decide(request).endpoints)
    bench.fail(request.request_id, first, second)
    assert {worker.name: worker.open for worker in bench.pool.fleet} == {name: int(name == second) for name in WORKERS}
    bench.pool.books.started(request.key, second, 5.0, bench.now)
    bench.pool.books.completed(request.key, bench.now, ok=True)
    assert everything(bench) == [(0, 0, 0)] * 3
    assert bench.decide(bench.prompt(family=1, blocks=4)).endpoints[0].name == second


@pytest.mark.requirement("S2-17")
def test_an_answer_from_another_worker_than_expected_moves_the_reservation_there() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    request = bench.request()
    first, second, *_ = (worker.name for worker in bench.decide(request).endpoints)
    bench.pool.books.started(request.key, second, 5.0, bench.now)
    assert {worker.name for worker in bench.pool.fleet if worker.open} == {second}
    assert first != second


@pytest.mark.requirement("S2-17")
def test_the_end_of_an_answer_names_the_worker_that_gave_it() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    request = bench.prompt(family=1, blocks=4, stream=False)
    first, second, *_ = (worker.name for worker in bench.decide(request).endpoints)
    bench.pool.books.completed(request.key, bench.now, ok=True, worker=second)
    assert bench.decide(bench.prompt(family=1, blocks=4)).endpoints[0].name == second != first


@pytest.mark.requirement("S2-15")
def test_the_prefix_of_a_request_whose_client_left_before_its_first_byte_is_not_counted_on() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    request = bench.prompt(family=1, blocks=4)
    bench.decide(request)
    bench.pool.books.completed(request.key, bench.now, ok=False)
    assert bench.decide(bench.prompt(family=1, blocks=4)).cached_tokens == 0


def test_the_prefix_of_an_answer_that_was_cut_off_is_still_there() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    request = bench.prompt(family=1, blocks=4)
    worker = bench.chosen(request)
    bench.pool.books.started(request.key, worker, 5.0, bench.now)
    bench.pool.books.completed(request.key, bench.now, ok=False)
    assert bench.decide(bench.prompt(family=1, blocks=4)).cached_tokens == 256


@pytest.mark.requirement("S2-17")
def test_when_only_the_end_is_heard_of_the_prefix_is_known_all_the_same() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    request = bench.prompt(family=1, blocks=4)
    bench.decide(request)
    bench.pool.books.completed(request.key, bench.now, ok=True)
    assert bench.decide(bench.prompt(family=1, blocks=4)).cached_tokens == 256


def test_a_request_id_that_is_used_again_is_open_for_peers_too() -> None:
    bench = Bench()
    bench.join("w0", "w1")
    bench.decide(bench.request(request_id="again"))
    bench.pool.books.completed(("edge-1", "again"), bench.now, ok=True)
    here = bench.chosen(bench.request(request_id="again"))
    there = {"w0": "w1", "w1": "w0"}[here]
    assert bench.place(bench.request(request_id="again"), there), "a peer's later word of it counts"


@pytest.mark.parametrize(("later_s", "counts"), [(9.0, False), (11.0, True)])
@pytest.mark.parametrize("others", [1, 200])
def test_an_end_is_remembered_for_ten_seconds(later_s: float, counts: bool, others: int) -> None:
    bench = Bench()
    bench.join("w0")
    books = bench.pool.books
    books.completed(("edge-1", "over"), bench.now, ok=True, told_ms=2)
    bench.now += later_s
    for number in range(others):
        books.completed(("edge-1", f"other-{number}"), bench.now, ok=True)
    assert books.ended_before(("edge-1", "over"), 1) is not counts
    assert bench.place(bench.request(request_id="over"), "w0") is counts


@pytest.mark.parametrize("age_s", [0.0, 1.0], ids=["before a report", "after a report"])
@pytest.mark.parametrize("running", [0, 1])
def test_an_answer_leaves_the_same_behind_whether_its_beginning_was_reported(age_s: float, running: int) -> None:
    loads: list[object] = []
    for streamed in (True, False):
        bench = Bench()
        bench.join("w0")
        request = bench.prompt(family=1, blocks=4, stream=streamed)
        bench.decide(request)
        bench.now += age_s
        bench.hear("w0", running=running)
        if streamed:
            bench.pool.books.started(request.key, "w0", 5.0, bench.now)
        bench.pool.books.completed(request.key, bench.now, ok=True)
        (worker,) = bench.pool.fleet
        cached = bench.decide(bench.prompt(family=1, blocks=4)).cached_tokens
        loads.append((worker.load(), worker.ended_running, worker.ended_waiting, everything(bench), cached))
    assert loads[0] == loads[1]


def test_the_end_of_a_whole_answer_is_told_to_the_estimator_once_with_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.join("w0")
    (producer,) = [each for each in bench.policy.producers if isinstance(each, DelayPrediction)]
    ends: list[int | None] = []

    def ended(key: Hashable, now: float, output_tokens: int | None) -> None:
        ends.append(output_tokens)

    monkeypatch.setattr(producer.estimator, "ended", ended)
    for ok, tokens in ((True, 40), (True, None), (False, 40)):
        request = bench.request()
        bench.decide(request)
        bench.pool.books.completed(request.key, bench.now, ok, tokens)
    assert ends == [40, None, None]


def test_an_answer_that_begins_twice_begins_once() -> None:
    bench = Bench()
    bench.join("w0")
    (hold,) = bench.decide().holds
    bench.pool.books.confirm(hold, bench.now)
    once = everything(bench)
    bench.pool.books.confirm(hold, bench.now)
    assert everything(bench) == once == [(1, 0, 100)]


def doubtful(bench: Bench) -> dict[str, list[str]]:
    return bench.pool.books.doubtful(bench.now, lambda scheduler: scheduler == "scheduler-1")


@pytest.mark.requirement("S2-23")
def test_a_request_that_takes_long_is_asked_about_and_never_dropped_for_its_age() -> None:
    bench = Bench()
    bench.join("w0")
    request = bench.request()
    bench.decide(request)
    asked: list[float] = []
    while bench.now < 1600:
        bench.now += 1
        bench.hear("w0", running=1)
        if doubtful(bench):
            asked.append(bench.now - 1000)
    assert asked == [60, 120, 180, 240, 300, 360, 420, 480, 540, 600]
    assert bench.pool.fleet.workers[0].open == 1


def test_a_request_that_its_engine_does_not_know_is_asked_about_within_seconds() -> None:
    bench = Bench()
    bench.join("w0")
    lost, living = bench.request(), bench.request()
    bench.decide(lost)
    bench.decide(living)
    for _ in range(6):
        bench.now += 0.5
        bench.hear("w0", running=1)
    assert doubtful(bench) == {"edge-1": [lost.request_id, living.request_id]}
    assert doubtful(bench) == {}
    bench.pool.books.completed(lost.key, bench.now, ok=False)
    for _ in range(30):
        bench.now += 0.5
        bench.hear("w0", running=1)
    assert doubtful(bench) == {}


def test_a_request_that_has_just_come_is_not_doubted_for_what_its_engine_forgot_before() -> None:
    bench = Bench()
    bench.join("w0")
    lost = bench.request()
    bench.decide(lost)
    bench.now += 0.5
    bench.hear("w0", running=0)
    bench.now += SURPLUS_AFTER_S - 0.5
    bench.decide(bench.request())
    assert doubtful(bench) == {}, "so long it may take a report to tell of it"
    bench.now += 0.5
    assert doubtful(bench) == {"edge-1": [lost.request_id]}
    bench.now += ASK_AGAIN_S - 0.1
    assert lost.request_id not in doubtful(bench).get("edge-1", [])
    bench.now += 0.1
    assert lost.request_id in doubtful(bench)["edge-1"]


BY_LOAD: dict[str, object] = {"scorers": ["queue", "running"]}


@pytest.mark.parametrize("reported", [{"running": 1}, {"waiting": 1}], ids=str)
def test_a_request_that_ended_while_a_report_was_on_its_way_does_not_decide(reported: dict[str, int]) -> None:
    bench = Bench(BY_LOAD)
    bench.join("w0", "w1")
    bench.now += 1
    for name in ("w0", "w1"):
        bench.hear(name)
    worker = bench.serve()
    bench.now += 0.02
    bench.hear(worker, **reported)
    assert len(set(bench.scores().values())) == 1


def test_a_request_that_came_after_an_engine_was_read_counts_though_the_report_came_later_still() -> None:
    bench = Bench(BY_LOAD)
    bench.join("w0", "w1")
    bench.now += 1
    bench.place(bench.request(), "w0")
    bench.now += 0.4
    bench.hear("w1")
    bench.hear("w0", age_ms=500)
    scores = bench.scores()
    assert scores["w0"] < scores["w1"]


def test_requests_of_others_count_though_some_of_ours_ended_meanwhile() -> None:
    bench = Bench(BY_LOAD)
    bench.join("w0", "w1")
    bench.now += 1
    bench.hear("w1")
    bench.hear("w0", running=3)
    request = bench.request()
    bench.place(request, "w0")
    bench.pool.books.completed(request.key, bench.now, ok=True)
    bench.now += 0.02
    bench.hear("w0", running=3)
    assert bench.chosen() == "w1"


def test_the_place_of_a_request_whose_client_left_early_is_free_wherever_its_engine_had_it() -> None:
    bench = Bench(BY_LOAD)
    bench.join("w0", "w1")
    request = bench.request()
    bench.place(request, "w0")
    bench.now += 1
    bench.hear("w1")
    bench.hear("w0", running=1)
    bench.pool.books.completed(request.key, bench.now, ok=False)
    assert len(set(bench.scores().values())) == 1


def test_each_scheduler_asks_about_its_own() -> None:
    bench = Bench()
    bench.join("w0")
    bench.place(bench.request(), "w0", scheduler="scheduler-2")
    bench.now += 100
    assert doubtful(bench) == {}
    assert bench.pool.books.doubtful(bench.now, lambda _: True) != {}


def test_a_reservation_of_a_living_peer_is_asked_about_when_the_peer_had_its_time() -> None:
    """The peer may have released it, and the release may be lost: then the peer doesn't ask."""
    bench = Bench()
    bench.join("w0")
    bench.place(bench.request(), "w0", scheduler="scheduler-2")
    begun, asked = bench.now, list[float]()
    while bench.now < begun + 60:
        bench.now += 1
        bench.hear("w0", running=0)
        if doubtful(bench):
            asked.append(bench.now - begun)
    assert asked == [11, 36], "the first report without the request came after 1 s"


def test_a_reservation_of_a_living_peer_on_a_busy_engine_is_asked_about_at_last() -> None:
    bench = Bench()
    bench.join("w0")
    bench.place(bench.request(), "w0", scheduler="scheduler-2")
    bench.now += PEERS_TIMES * ASK_AFTER_S - 1
    assert doubtful(bench) == {}
    bench.now += 1
    assert doubtful(bench) != {}


def test_the_requests_of_a_dead_edge_are_written_off() -> None:
    bench = Bench()
    bench.join(*WORKERS)
    for _ in range(5):
        bench.decide(bench.request(edge="edge-1"))
        bench.decide(bench.request(edge="edge-2"))
    assert bench.pool.books.edge_gone("edge-1", bench.now) == 5
    assert sum(worker.open for worker in bench.pool.fleet) == 5


@dataclass
class Request:
    """The true state of one request."""

    worker: str
    edge: str
    prompt_tokens: int
    sent_again: bool = False
    answering: bool = False
    over: bool = False
    told: list[object] = field(default_factory=list[object])


class Chaos(RuleBasedStateMachine):
    """Two schedulers on a bus that loses, repeats and reorders, with engines that die and come back. When the noise
    has settled, both books hold what is really open."""

    def __init__(self) -> None:
        super().__init__()
        self.benches = [Bench(), Bench(scheduler="scheduler-2")]
        self.requests: dict[RequestKey, Request] = {}
        self.lives = dict.fromkeys(WORKERS, 1)
        self.wire: list[tuple[int, str, object]] = []
        """Receiver, sender, message."""
        self.complete = True
        """Whether both schedulers know of every request: nothing was lost, and no engine took a reservation to its
        grave while word of the request's going on elsewhere was under way."""
        for bench in self.benches:
            bench.join(*WORKERS)

    # What happens

    @rule(
        by=st.integers(0, 1),
        edge=st.sampled_from(EDGES),
        tokens=st.integers(1, 900),
        blocks=st.integers(0, 6),
        twin=st.booleans(),
    )
    def a_request_is_scheduled(self, by: int, edge: str, tokens: int, blocks: int, twin: bool) -> None:
        bench = self.benches[by]
        request = bench.prompt(family=tokens % 3, blocks=blocks, edge=edge)
        others = [name for _, name in self.requests if (edge, name) not in self.requests]
        if twin and others:  # a client of this edge uses the id of one of another edge
            request.request_id = others[tokens % len(others)]
        request.facts = replace(request.facts, prompt_tokens=request.facts.prompt_tokens + tokens)
        outcome = bench.decide(request, seed=tokens)
        worker = outcome.endpoints[0].name
        self.requests[request.key] = Request(worker, edge, request.facts.prompt_tokens)
        for hold in outcome.holds:
            self.wire.append((1 - by, bench.pool.scheduler, hold.change))

    def _open(self) -> list[RequestKey]:
        return [name for name, request in self.requests.items() if not request.over]

    @precondition(lambda self: self._open())
    @rule(by=st.integers(0, 1), pick=st.integers(0, 99), fresh=st.booleans())
    def a_request_is_sent_again(self, by: int, pick: int, fresh: bool) -> None:
        names = [name for name in self._open() if not self.requests[name].answering]
        if not names:
            return
        name = names[pick % len(names)]
        truth = self.requests[name]
        if truth.sent_again:
            return
        truth.sent_again = True
        bench = self.benches[by]
        request = bench.request(request_id=name[1], edge=truth.edge, prompt_tokens=truth.prompt_tokens, attempt=2)
        outcome = bench.decide(request, seed=pick)
        if fresh:  # the edge uses the second decision
            truth.worker = outcome.endpoints[0].name
        for hold in outcome.holds:
            self.wire.append((1 - by, bench.pool.scheduler, hold.change))

    def _tell_all(self, message: object) -> None:
        self.wire += [(receiver, "edge", message) for receiver in (0, 1)]

    @precondition(lambda self: self._open())
    @rule(pick=st.integers(0, 99))
    def an_answer_begins(self, pick: int) -> None:
        names = self._open()
        name = names[pick % len(names)]
        self.requests[name].answering = True
        self._tell_all(("started", name, self.requests[name].worker))

    @precondition(lambda self: self._open())
    @rule(pick=st.integers(0, 99), other=st.sampled_from(WORKERS), outcome=st.sampled_from(["refused", "failed"]))
    def an_attempt_fails(self, pick: int, other: str, outcome: str) -> None:
        names = self._open()
        name = names[pick % len(names)]
        truth = self.requests[name]
        if truth.answering or other == truth.worker:
            return
        event = AttemptFailed(
            request_id=name[1],
            source=truth.edge,
            sequence=1,
            at_ms=0,
            pool="llama",
            worker=truth.worker,
            outcome=outcome,
            next_worker=other,
        )
        truth.worker = other
        self._tell_all(event)

    @precondition(lambda self: self._open())
    @rule(pick=st.integers(0, 99), ok=st.booleans())
    def a_request_ends(self, pick: int, ok: bool) -> None:
        names = self._open()
        name = names[pick % len(names)]
        self.requests[name].over = True
        self._tell_all(("completed", name, ok))

    @rule(worker=st.sampled_from(WORKERS))
    def an_engine_restarts(self, worker: str) -> None:
        self.lives[worker] += 1
        self.complete = self.complete and not self.wire
        for name, request in self.requests.items():
            if request.worker == worker and not request.over:
                request.over = True
                self._tell_all(("completed", name, False))
        for bench in self.benches:
            bench.join(worker, boot_id=f"life-{self.lives[worker]}")

    @rule(worker=st.sampled_from(WORKERS), by=st.integers(0, 1))
    def a_registration_lapses_and_returns(self, worker: str, by: int) -> None:
        bench = self.benches[by]
        bench.pool.remove(worker, bench.now)
        bench.join(worker, boot_id=f"life-{self.lives[worker]}")

    @rule(seconds=st.floats(0, 2), running=st.integers(0, 5), waiting=st.integers(0, 5))
    def time_passes(self, seconds: float, running: int, waiting: int) -> None:
        for bench in self.benches:
            bench.now += seconds
            for worker in WORKERS:
                bench.hear(worker, boot_id=f"life-{self.lives[worker]}", running=running, waiting=waiting)

    # What the bus does

    @precondition(lambda self: self.wire)
    @rule(pick=st.integers(0, 999), fate=st.sampled_from(["deliver", "deliver", "deliver", "twice", "lose"]))
    def the_bus_delivers(self, pick: int, fate: str) -> None:
        receiver, sender, message = self.wire.pop(pick % len(self.wire))
        self.complete = self.complete and fate != "lose"
        for _ in range({"deliver": 1, "twice": 2, "lose": 0}[fate]):
            self._deliver(receiver, sender, message)

    def _deliver(self, receiver: int, sender: str, message: object) -> None:
        bench = self.benches[receiver]
        books = bench.pool.books
        match message:
            case ReservationChange() | ReservationChange():
                books.apply(message, sender, bench.now)
            case AttemptFailed():
                books.failed(message, bench.now)
            case ("started", (str(edge), str(name)), str(worker)):
                books.started((edge, name), worker, 5.0, bench.now)
            case ("completed", (str(edge), str(name)), bool(ok)):
                books.completed((edge, name), bench.now, ok=ok)
            case _:
                pytest.fail(f"{message!r}")

    # What must hold

    @invariant()
    def nothing_is_ever_negative(self) -> None:
        for bench in self.benches:
            for worker in bench.pool.fleet:
                assert worker.open >= 0
                assert worker.prefill_tokens >= 0
                assert worker.context_tokens >= 0
                waiting, running, kv_usage = worker.load()
                assert waiting >= 0
                assert running >= 0
                assert 0 <= kv_usage <= 1

    @invariant()
    def the_sums_are_those_of_the_entries(self) -> None:
        for bench in self.benches:
            holds = list(bench.pool.books)
            for worker in bench.pool.fleet:
                mine = [hold for hold in holds if hold.worker is worker]
                assert worker.open == len(mine) == len(worker.holds)
                assert worker.context_tokens == sum(hold.change.prompt_tokens for hold in mine)
                assert worker.prefill_tokens == sum(hold.change.uncached_tokens for hold in mine if not hold.confirmed)

    def teardown(self) -> None:
        """The noise settles: what is on the wire arrives, edges say what is open, and the books are true."""
        while self.wire:
            self._deliver(*self.wire.pop(0))
        really_open = set(self._open())
        for bench in self.benches:
            for _ in range(3):
                bench.now += 70
                for worker in WORKERS:
                    bench.hear(worker, boot_id=f"life-{self.lives[worker]}")
                for edge, names in bench.pool.books.doubtful(bench.now, lambda _: True).items():
                    for name in {(edge, name) for name in names} - really_open:
                        bench.pool.books.completed(name, bench.now, ok=False)
            known = {hold.request for hold in bench.pool.books}
            assert known <= really_open
            if self.complete:
                assert known == really_open
            for name in really_open:
                self.requests[name].over = True
                bench.pool.books.completed(name, bench.now, ok=True)
            assert set(everything(bench)) <= {(0, 0, 0)}
            assert len(bench.pool.books) == 0


TestChaos = Chaos.TestCase
TestChaos.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
