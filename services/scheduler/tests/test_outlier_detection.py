"""A pool judges its workers by what requests experience: failures against those of peers, and progress."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_core.plugins import Spec
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.domain.outlier_detection import Overdue
from pointsman_scheduler.domain.patience import LEAST_S
from pointsman_scheduler.plugins.flow_control import flow_registries
from pointsman_testing.scheduler_bench import Bench

TTFT_S = 0.05
AT_RANDOM = {"scorers": [{"use": "least-delay"}], "picker": "random"}
"""Equal shares, with the predictions of the default policy."""


class Engines:
    """A pool that chooses at random among healthy engines. They answer each request after `TTFT_S`, or as a test says:
    with a status, or not at all. As edges do, a failed attempt goes on to the next endpoint of its decision, each at
    most once."""

    def __init__(self, count: int, *, stream: bool = True, counters: bool = True) -> None:
        """`counters`: whether engines report work: it moves while they answer."""
        self.bench = Bench(AT_RANDOM)
        self.names = [f"e{number}" for number in range(count)]
        self.bench.join(*self.names)
        self.stream = stream
        self.counters = counters
        self._worked = dict.fromkeys(self.names, 0)
        self.bad: dict[str, int] = {}
        """Engine → the status that it answers at once; 0: it doesn't answer."""
        self.part = 1.0
        """Part of the requests that bad engines fail."""
        self.sent: list[tuple[float, str]] = []
        """When, and to which engine requests were sent."""
        self.failed = 0
        """Requests of which each attempt failed."""
        self.moved: list[str] = []
        """Requests that left an engine, by id."""
        self._due: list[tuple[float, ScheduleRequest, str]] = []
        self._held: list[tuple[ScheduleRequest, str]] = []
        """Requests that aren't answered."""
        self.fallbacks: dict[str, list[str]] = {}
        self._swept_at = self.bench.now

    def worker(self, name: str) -> Worker:
        worker = self.bench.pool.fleet.find(name)
        assert worker is not None
        return worker

    def run(self, seconds: float, rate: float = 20.0, **facts: object) -> None:
        """Send requests at this rate, and let time pass."""
        until, gap = self.bench.now + seconds, 1.0 / rate
        while self.bench.now < until:
            self.ask(**facts)
            self.bench.now += gap
            self.pass_time()

    def ask(self, **facts: object) -> None:
        request = self.bench.request(stream=self.stream, **facts)
        outcome = self.bench.decide(request, seed=len(self.sent))
        first, *fallbacks = [worker.name for worker in outcome.endpoints]
        self.fallbacks[request.request_id] = fallbacks
        self._send(request, first)

    def _send(self, request: ScheduleRequest, name: str) -> None:
        self.sent.append((self.bench.now, name))
        status = self.bad.get(name) if len(self.sent) * self.part % 1.0 < self.part else None
        if status is None:
            self._due.append((self.bench.now + TTFT_S, request, name))
        elif not status:
            self._held.append((request, name))
        else:
            self._fail(request, name, outcome="limited" if status in (429, 529) else "failed", status=status)

    def mend(self) -> None:
        """Every engine is good again, and answers what it held."""
        self.bad = {}
        self._due += [(self.bench.now, *each) for each in self._held if each[0].request_id not in self.moved]
        self._held.clear()

    def _fail(self, request: ScheduleRequest, name: str, **facts: object) -> None:
        left = self.fallbacks[request.request_id]
        following = left.pop(0) if left else None
        self.bench.fail(request.request_id, name, following, **facts)
        if following is not None:
            self._send(request, following)
        else:
            self.failed += 1
            self.bench.pool.books.completed(request.key, self.bench.now, ok=False)

    def pass_time(self) -> None:
        """Answers come, engines report, and the pool is swept."""
        books = self.bench.pool.books
        due, self._due = self._due, []
        for at, request, name in due:
            if at > self.bench.now:
                self._due.append((at, request, name))
                continue
            if self.stream:
                books.started(request.key, name, TTFT_S * 1000, self.bench.now)
            books.completed(request.key, self.bench.now, True, 10, 100.0, name)
        for name in self.names:
            self._worked[name] += self.bad.get(name) is None
            self.bench.hear(name, running=1, worked_tokens=self._worked[name] if self.counters else None)
        if self.bench.now - self._swept_at >= 1.0:
            self._swept_at = self.bench.now
            self.sweep()

    def sweep(self) -> list[Overdue]:
        """Look for overdue requests, and move those that the pool names, as edges do."""
        self.bench.pool.sweep(self.bench.now)
        for overdue in self.bench.pool.overdue:
            for hold in overdue.holds:
                request = self.bench.request(request_id=hold.change.request_id, stream=self.stream)
                self.moved.append(hold.change.request_id)
                self._fail(request, overdue.worker.name, outcome="stalled")
        return self.bench.pool.overdue

    def share(self, since: float) -> Counter[str]:
        """Requests that each engine got since then."""
        return Counter(name for at, name in self.sent if at >= since)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [500, 429])
@pytest.mark.parametrize("count", [2, 8])
def test_an_engine_that_fails_at_once_is_left_and_has_its_share_back_when_it_is_good(
    count: int, status: int, stream: bool
) -> None:
    engines = Engines(count, stream=stream)
    engines.run(2.0)
    engines.bad = {"e0": status}
    began = engines.bench.now
    engines.run(8.0)
    assert engines.failed == 0
    assert engines.share(began)["e0"] <= 3 + 8
    assert engines.share(began + 5.0)["e0"] <= 3
    engines.bad = {}
    engines.run(10.0)
    since = engines.bench.now
    engines.run(5.0)
    assert engines.share(since)["e0"] >= 0.5 * 100 / count


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_an_engine_that_does_not_answer_gets_trials_and_what_it_holds_moves_once(count: int, stream: bool) -> None:
    engines = Engines(count, stream=stream)
    engines.run(5.0)
    engines.bad = {"e0": 0}
    began = engines.bench.now
    engines.run(12.0)
    assert engines.worker("e0").standing.hung
    assert engines.share(began + 5.0)["e0"] <= 7
    (verdict,) = engines.bench.pool.outliers.verdicts(engines.bench.now)
    assert (verdict.worker.name, verdict.verdict) == ("e0", "suspect")
    assert "no answer within" in verdict.reason
    engines.run(6.0)
    assert engines.failed == 0
    assert len(set(engines.moved)) == len(engines.moved) > 0
    waiting = [hold for hold in engines.bench.pool.books if hold.worker.name == "e0"]
    assert all(engines.bench.now - hold.at < 6.0 for hold in waiting)
    engines.bad = {}
    engines.run(10.0)
    since = engines.bench.now
    engines.run(5.0)
    assert engines.share(since)["e0"] >= 0.5 * 100 / count


def test_engines_that_fail_half_of_their_requests_do_not_hide_each_other() -> None:
    engines = Engines(3)
    engines.run(5.0)
    engines.part = 0.5
    engines.bad = {"e0": 500, "e1": 500}
    engines.run(5.0)
    since = engines.bench.now
    engines.run(5.0)
    assert engines.share(since)["e2"] >= 80
    assert engines.failed == 0


def test_an_engine_that_shows_nothing_and_answers_nothing_is_left_later() -> None:
    engines = Engines(2, stream=False, counters=False)
    engines.run(5.0)
    engines.bad = {"e0": 0}
    engines.run(9.0)
    assert not engines.worker("e0").standing.hung
    engines.run(4.0)
    assert engines.worker("e0").standing.hung
    assert engines.failed == 0
    assert len(set(engines.moved)) == len(engines.moved) > 0


@pytest.mark.parametrize(
    ("load", "named"),
    [
        ({"running": 64, "waiting": 500, "worked_tokens": 1000}, ["e0"]),
        ({"running": 0, "worked_tokens": 1000}, []),
        ({"running": 64, "waiting": 500}, []),
        ({"running": 64, "worked_tokens": 1000, "load_unknown": "metrics 503"}, []),
    ],
)
def test_an_engine_that_looks_full_and_does_nothing_is_named_without_a_request(
    load: dict[str, object], named: list[str]
) -> None:
    engines = Engines(2)
    engines.run(5.0)
    for _ in range(10):
        engines.bench.now += 0.4
        engines.bench.hear("e0", **load)
        engines.bench.hear("e1")
        engines.sweep()
    assert not engines.bench.pool.fleet.ejected
    verdicts = engines.bench.pool.outliers.verdicts(engines.bench.now)
    assert [verdict.worker.name for verdict in verdicts if "it has stalled" in verdict.reason] == named


@pytest.mark.parametrize(
    "claim",
    [
        {"running": 106, "waiting": 15, "kv_usage": 0.99},
        {"waiting": 6},
        {"running": 64, "waiting": 500},
        {"kv_usage": 1.0},
    ],
)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_load_that_stands_still_without_a_request_of_the_books_closes_no_pool(
    count: int, claim: dict[str, object]
) -> None:
    """vllm-project/vllm #29928: when all requests are aborted, an engine reports them until its next step, which it
    never has without a request."""
    bench = Bench(AT_RANDOM)
    names = [f"e{number}" for number in range(count)]
    bench.join(*names)
    (detector,) = flow_registries().detectors.build([Spec("utilization", "utilization", {})])

    def report_for(seconds: float, **load: object) -> None:
        until = bench.now + seconds
        while bench.now < until:
            bench.now += 0.4
            for name in names:
                bench.hear(name, **load)
        bench.pool.fleet.refresh(bench.now)

    report_for(8.0, worked_tokens=1000, **claim)
    fleet = bench.pool.fleet
    assert detector.saturation(fleet, bench.now) >= 1.0, "it may compute one long prompt"
    report_for(3.0, worked_tokens=1000, **claim)
    assert detector.saturation(fleet, bench.now) < 1.0
    outcome = bench.decide()
    assert any("its counters of work stand" in reason for reason in outcome.reasons)
    assert len([each for each in bench.pool.outliers.verdicts(bench.now) if "it has stalled" in each.reason]) == count
    report_for(0.4, worked_tokens=1001, **claim)
    assert detector.saturation(fleet, bench.now) >= 1.0, "an engine that works is as full as it says"


def test_load_that_the_books_explain_is_believed_however_long_its_counters_stand() -> None:
    engines = Engines(1)
    engines.bad["e0"] = 0
    for _ in range(12):
        engines.ask()
    for _ in range(40):
        engines.bench.now += 0.4
        engines.bench.hear("e0", running=4, waiting=8, kv_usage=0.1, worked_tokens=1000)
    assert not engines.worker("e0").opaque


@pytest.mark.parametrize("stream", [True, False])
def test_outages_of_a_pool_are_not_taken_for_its_usual_time(stream: bool) -> None:
    engines = Engines(3, stream=stream)
    engines.run(2.0, rate=10.0, max_output_tokens=10)
    for _ in range(2):
        engines.bad = dict.fromkeys(engines.names, 0)
        engines.run(8.0, rate=10.0, max_output_tokens=10)
        engines.mend()
        engines.run(1.5, rate=10.0, max_output_tokens=10)
    assert not engines.bench.pool.fleet.ejected
    engines.bad = {"e0": 0}
    engines.run(3.5, max_output_tokens=10)
    assert engines.worker("e0").standing.hung
    assert engines.failed == 0


def test_no_second_worker_is_tried_beside_the_first_while_none_answers() -> None:
    engines = Engines(3, stream=False, counters=False)
    engines.run(5.0, max_output_tokens=10)
    detection = engines.bench.pool.outliers
    (hold,) = engines.bench.decide(engines.bench.request(stream=False, max_output_tokens=10)).holds
    assert detection.within_ms(hold) is not None
    engines.bad = dict.fromkeys(engines.names, 0)
    engines.run(8.0, max_output_tokens=10)
    assert detection.within_ms(hold) is None


def test_a_long_prompt_has_as_long_as_the_model_predicts_for_it() -> None:
    engines = Engines(2)
    engines.run(5.0)
    engines.bad = {"e0": 0, "e1": 0}
    engines.ask(prompt_tokens=400_000)
    (hold,) = engines.bench.pool.books
    predicted_s = hold.predicted_ms / 1000
    assert predicted_s > 1.0
    engines.bad = {hold.worker.name: 0}
    asked_at = engines.bench.now
    while engines.bench.now - asked_at < 2 * predicted_s:
        engines.run(0.5)
        assert engines.moved == []
    engines.run(100.0 * predicted_s, rate=1.0)
    assert hold.change.request_id in engines.moved


def test_nothing_is_judged_while_no_engine_answers() -> None:
    engines = Engines(3, counters=False)
    engines.run(5.0)
    engines.bad = dict.fromkeys(engines.names, 0)
    engines.run(10.0)
    assert not engines.bench.pool.fleet.ejected
    assert engines.moved == []
    verdicts = engines.bench.pool.outliers.verdicts(engines.bench.now)
    assert {verdict.verdict for verdict in verdicts} == {"failing"}


def test_an_engine_whose_own_counters_stand_is_suspect_without_a_peer() -> None:
    engines = Engines(1)
    engines.run(5.0)
    engines.bad = {"e0": 0}
    engines.ask()
    for second in range(1, 6):
        engines.bench.now += 1.0
        engines.bench.hear("e0", running=1, worked_tokens=1000 + second)
        engines.sweep()
        assert not engines.worker("e0").standing.hung
    for _ in range(4):
        engines.bench.now += 1.0
        engines.bench.hear("e0", running=1, worked_tokens=1005)
        engines.sweep()
    assert engines.worker("e0").standing.hung


def test_a_pause_of_all_requests_for_three_seconds_moves_no_answer_that_takes_six() -> None:
    bench = Bench()
    bench.join("a", "b", "c")
    asked = [bench.request(stream=False) for _ in range(12)]
    homes = {request.key: bench.chosen(request) for request in asked}
    paused = homes[asked[0].key]
    for _ in range(90):
        bench.now += 0.1
        for name in "abc":
            bench.hear(name)
        bench.pool.sweep(bench.now)
        assert bench.pool.overdue == []
        for request in asked:
            took_s = 9.0 if homes[request.key] == paused else 6.0
            if bench.pool.books.find_reservation(request.key) is not None and bench.now >= 1000.0 + took_s:
                bench.pool.books.completed(request.key, bench.now, ok=True)
    assert not bench.pool.fleet.ejected


@pytest.mark.parametrize("counters", [True, False])
def test_a_long_answer_after_short_ones_is_started_once(counters: bool) -> None:
    engines = Engines(3, stream=False, counters=counters)
    engines.run(10.0)
    long = engines.bench.request(request_id="long", stream=False)
    home = engines.bench.chosen(long)
    for _ in range(12):
        engines.run(5.0, rate=1.0)
        assert engines.moved == []
        assert not engines.bench.pool.fleet.ejected
    engines.bench.pool.books.completed(long.key, engines.bench.now, True, 3000, 60_000.0, home)
    engines.run(5.0)
    assert not engines.bench.pool.fleet.ejected


def test_the_first_bytes_after_many_images_may_be_late_while_the_engine_works() -> None:
    engines = Engines(2)
    engines.run(10.0)
    images = engines.bench.request(request_id="images", features=("vision",))
    home, other = (worker.name for worker in engines.bench.decide(images).endpoints)
    engines.fallbacks["images"] = [other]
    for number in range(20):
        engines.bench.now += 0.5
        engines.bench.hear(home, running=1, worked_tokens=10_000 + number)
        engines.bench.hear(other)
        engines.bench.serve(engines.bench.request(workers=(other,)))
        assert engines.sweep() == []
    for _ in range(12):
        engines.bench.now += 0.5
        engines.bench.hear(home, running=1, worked_tokens=10_020)
        engines.bench.hear(other)
        engines.bench.serve(engines.bench.request(workers=(other,)))
        engines.sweep()
    assert engines.moved == ["images"]


@settings(max_examples=60, deadline=None)
@given(
    takes_s=st.lists(st.floats(0.05, 40.0), min_size=1, max_size=12),
    counters=st.booleans(),
    limit=st.sampled_from([None, 8000]),
    stall_at_s=st.floats(0.0, 10.0),
    gap_s=st.floats(0.05, 3.0),
)
def test_no_whole_answer_is_started_twice_while_engines_work(
    takes_s: list[float], counters: bool, limit: int | None, stall_at_s: float, gap_s: float
) -> None:
    """Answers take as long as they take, after short ones; the pages of one engine stand still for 3 s; engines
    without counters answer at least one request in 8 s."""
    engines = Engines(3, stream=False, counters=counters)
    engines.run(5.0)
    bench, books = engines.bench, engines.bench.pool.books
    began = bench.now
    due: list[tuple[float, ScheduleRequest, str]] = []
    left = list(takes_s)
    worked = 10_000
    next_at = next_short_at = began
    while due or left:
        bench.now += 0.25
        worked += 1
        if left and bench.now >= next_at:
            request = bench.request(stream=False, max_output_tokens=limit)
            due.append((bench.now + left.pop(), request, bench.chosen(request, seed=len(left))))
            next_at = bench.now + gap_s
        if not counters and bench.now >= next_short_at:
            next_short_at = bench.now + 8.0
            for name in engines.names:
                request = bench.request(stream=False, workers=(name,))
                due.append((bench.now + 0.1, request, bench.chosen(request)))
        for at, request, name in [each for each in due if each[0] <= bench.now]:
            due.remove((at, request, name))
            books.completed(request.key, bench.now, True, 100, 1.0, name)
        for name in engines.names:
            if name == "e0" and stall_at_s <= bench.now - began < stall_at_s + 3.0:
                continue
            bench.hear(name, running=1, worked_tokens=worked if counters else None)
        assert engines.sweep() == []
        assert not bench.pool.fleet.ejected


@pytest.mark.parametrize("drained_at_s", [1.0, 5.0, 1000.0])
@pytest.mark.parametrize("gap_s", [0.2, 2.0])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_long_answers_of_a_new_fleet_are_no_failures_while_its_engines_compute_tokens(
    drained_at_s: float, gap_s: float, part: float
) -> None:
    """Nothing was learnt yet, the model predicts little more than a second, and one engine gets no new requests from a
    moment on."""
    bench = Bench(AT_RANDOM)
    bench.join("a", "b", "c")
    began = next_at = bench.now
    dice = random.Random(f"{drained_at_s} {gap_s} {part}")
    left = [(dice.uniform(20.0, 60.0), dice.random() < part) for _ in range(20)]
    due: list[tuple[float, ScheduleRequest, str]] = []
    while due or left:
        bench.now += 0.5
        while left and bench.now >= next_at:
            next_at += gap_s
            took_s, stream = left.pop()
            able = ("a", "b", "c") if bench.now - began < drained_at_s else ("b", "c")
            request = bench.request(stream=stream, max_output_tokens=100, workers=able)
            home = bench.chosen(request, seed=len(left))
            if stream:
                bench.pool.books.started(request.key, home, 100.0, bench.now)
            due.append((bench.now + took_s, request, home))
        for each in [each for each in due if each[0] <= bench.now]:
            due.remove(each)
            bench.pool.books.completed(each[1].key, bench.now, True, 100, 1.0, each[2])
        for name in "abc":
            bench.hear(name, running=sum(each[2] == name for each in due), worked_tokens=int(bench.now * 100))
        bench.pool.sweep(bench.now)
        assert bench.pool.overdue == []
        assert bench.pool.outliers.verdicts(bench.now) == []


@pytest.mark.parametrize("unknown", ["", "metrics 503"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_engine_whose_begun_streams_do_not_end_gets_trials_and_they_stay(count: int, unknown: str) -> None:
    engines = Engines(count)
    engines.run(5.0, max_output_tokens=10)
    books, sick = engines.bench.pool.books, "e0"
    for number in range(8):
        request = engines.bench.request(max_output_tokens=10, workers=(sick,), request_id=f"stuck-{number}")
        engines.bench.decide(request)
        books.started(request.key, sick, 50.0, engines.bench.now)
    for number in range(10):
        engines.bench.now += 0.5
        for name in engines.names:
            load = {"load_unknown": unknown} if unknown else {"worked_tokens": 10_000 + number}
            engines.bench.hear(name, running=8 * (name == sick), **load)
            if name != sick:
                engines.bench.serve(engines.bench.request(workers=(name,)))
        assert engines.sweep() == []
    (verdict,) = engines.bench.pool.outliers.verdicts(engines.bench.now)
    assert verdict.worker.name == sick
    assert "stalled after it had begun" in verdict.reason
    assert len(engines.worker(sick).holds) == 8


def test_engines_whose_begun_streams_all_do_not_end_are_named_though_they_keep_their_shares() -> None:
    engines = Engines(2)
    engines.run(10.0, max_output_tokens=10)
    books = engines.bench.pool.books
    for number in range(8):
        request = engines.bench.request(max_output_tokens=10, workers=(f"e{number % 2}",), request_id=f"stuck-{number}")
        books.started(request.key, engines.bench.chosen(request), 50.0, engines.bench.now)
    for number in range(10):
        engines.bench.now += 0.5
        for name in engines.names:
            engines.bench.hear(name, running=4, worked_tokens=10_000 + number)
        engines.sweep()
    verdicts = engines.bench.pool.outliers.verdicts(engines.bench.now)
    assert [each.worker.name for each in verdicts] == engines.names
    assert all("stalled after it had begun" in each.reason for each in verdicts)


@pytest.mark.parametrize(("running", "unknown", "readers"), [(0, "", 8), (8, "", 8), (8, "503", 8), (0, "503", 2)])
def test_slow_readers_of_streams_do_not_count_against_their_engine(running: int, unknown: str, readers: int) -> None:
    """It has nothing to do, or it ends the streams of others, or its load is unknown and there are few."""
    engines = Engines(2)
    engines.run(5.0, max_output_tokens=10)
    books = engines.bench.pool.books
    for number in range(readers):
        request = engines.bench.request(max_output_tokens=10, workers=("e0",), request_id=f"slow-{number}")
        engines.bench.decide(request)
        books.started(request.key, "e0", 50.0, engines.bench.now)
    for _ in range(20):
        engines.bench.now += 0.5
        if running:
            engines.bench.serve(engines.bench.request(workers=("e0",)))
        engines.bench.hear("e0", running=running, load_unknown=unknown)
        engines.bench.hear("e1")
        assert engines.sweep() == []
    assert not engines.bench.pool.fleet.ejected


def test_a_request_is_moved_once_and_its_second_engine_may_take_its_time() -> None:
    engines = Engines(3)
    engines.run(5.0)
    engines.bad = {"e0": 0, "e1": 0}
    engines.run(20.0)
    assert len(set(engines.moved)) == len(engines.moved)


@pytest.mark.parametrize("status", [500, 429])
def test_engines_that_all_fail_get_requests_in_turn_whatever_their_queues(status: int) -> None:
    engines = Engines(3)
    engines.bad = dict.fromkeys(engines.names, status)
    engines.run(5.0)
    assert len(engines.bench.pool.fleet.ejected) == 3
    firsts: list[str] = []
    for number in range(30):
        engines.bench.now += 0.1
        for name in engines.names:
            engines.bench.hear(name, waiting=0 if name == "e0" else 50)
        outcome = engines.bench.decide(engines.bench.request(request_id=f"last-{number}"))
        firsts.append(outcome.endpoints[0].name)
        assert outcome.reasons == ["every worker fails requests: they get them in turn"]
    assert Counter(firsts) == {"e0": 10, "e1": 10, "e2": 10}


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([200, 500, 429, 0]), min_size=3, max_size=3), st.integers(0, 10_000))
def test_whatever_engines_do_one_that_is_good_serves_all_after_a_few_seconds(kinds: list[int], seed: int) -> None:
    engines = Engines(4)
    engines.run(2.0 + seed / 10_000)
    engines.bad = {f"e{number}": kind for number, kind in enumerate(kinds) if kind != 200}
    engines.run(5.0)
    since = engines.bench.now
    failed = engines.failed
    engines.run(5.0)
    share = engines.share(since)
    assert engines.failed == failed
    assert all(share[name] <= 8 for name in engines.bad)


def test_a_model_that_one_engine_answers_404_for_goes_to_its_peers_for_a_while() -> None:
    bench = Bench()
    bench.join("a", "b", loras=("sql",))
    books = bench.pool.books
    request = bench.request(lora="sql")
    first = bench.chosen(request)
    other = "b" if first == "a" else "a"
    bench.fail(request.request_id, first, other, outcome="missing", status=404)
    assert bench.survivors(bench.request(lora="sql")) == {"a", "b"}, "it may be the client's fault"
    books.completed(request.key, bench.now, True, 1, 1.0, other, disproved=((first, "missing", "sql"),))
    assert bench.survivors(bench.request(lora="sql")) == {other}
    assert bench.survivors(bench.request(model="base")) == {"a", "b"}
    (verdict,) = bench.pool.outliers.verdicts(bench.now)
    assert (verdict.worker.name, verdict.verdict) == (first, "lacking")
    bench.now += 10.1
    bench.hear("a")
    bench.hear("b")
    assert bench.survivors(bench.request(lora="sql")) == {"a", "b"}
    assert bench.pool.outliers.verdicts(bench.now) == []


def test_an_engine_that_denies_what_its_peers_answer_is_ejected_and_a_clients_bad_key_ejects_none() -> None:
    bench = Bench()
    bench.join("a", "b")
    for number in range(10):
        for name, following in (("a", "b"), ("b", None)):
            bench.fail(f"bad-key-{number}", name, following, outcome="denied", status=401)
    assert not bench.pool.fleet.ejected
    for number in range(3):
        request = bench.request(request_id=f"good-key-{number}")
        bench.decide(request)
        bench.pool.books.completed(request.key, bench.now, True, 1, 1.0, "b", disproved=(("a", "denied", "m"),))
    assert [worker.name for worker in bench.pool.fleet.ejected] == ["a"]


@pytest.mark.parametrize(("silent", "ejected"), [(("a",), ["a"]), (("a", "b"), [])])
def test_answers_without_a_word_eject_an_engine_only_if_its_peers_have_fewer(
    silent: tuple[str, ...], ejected: list[str]
) -> None:
    bench = Bench(AT_RANDOM)
    bench.join("a", "b")
    for number in range(40):
        request = bench.request(request_id=f"r-{number}")
        first = bench.chosen(request)
        other = "b" if first == "a" else "a"
        without_a_word = first in silent and (len(silent) == 1 or number % 3 == 0)
        if without_a_word:
            bench.fail(request.request_id, first, other, outcome="empty", status=200)
        disproved = ((first, "empty", "m"),) if without_a_word else ()
        answering = other if without_a_word else first
        bench.pool.books.completed(request.key, bench.now, True, 1, 1.0, answering, disproved=disproved)
    assert [worker.name for worker in bench.pool.fleet.ejected] == ejected


def test_answers_that_break_off_eject_an_engine_though_each_began() -> None:
    bench = Bench()
    bench.join("a", "b")
    for _ in range(3):
        request = bench.request()
        bench.decide(request)
        bench.pool.books.started(request.key, "a", 5.0, bench.now)
        bench.pool.books.completed(request.key, bench.now, False, worker="a", ending="cut_off")
    assert [worker.name for worker in bench.pool.fleet.ejected] == ["a"]


@pytest.mark.parametrize(("leaving", "ejected"), [(("a",), ["a"]), (("a", "b"), [])])
def test_ends_that_may_be_the_clients_eject_an_engine_only_if_its_peers_have_fewer(
    leaving: tuple[str, ...], ejected: list[str]
) -> None:
    bench = Bench(AT_RANDOM)
    bench.join("a", "b")
    for number in range(40):
        request = bench.request()
        worker = bench.decide(request, seed=number).endpoints[0].name
        bench.pool.books.started(request.key, worker, 5.0, bench.now)
        ok = worker not in leaving
        bench.pool.books.completed(request.key, bench.now, ok, worker=worker, ending="" if ok else "unsure")
        bench.now += 0.01
    assert [worker.name for worker in bench.pool.fleet.ejected] == ejected


def test_the_gateways_own_exhaustion_ejects_no_engine() -> None:
    bench = Bench()
    bench.join("a", "b")
    for number in range(100):
        bench.fail(f"r{number}", "a", outcome="exhausted")
    assert not bench.pool.fleet.ejected


def test_a_trial_goes_to_an_engine_that_scores_would_not_choose_and_namesfallbacks() -> None:
    engines = Engines(3)
    engines.bad = {"e0": 500}
    engines.run(3.0)
    bench = engines.bench
    assert engines.worker("e0").standing.ejected
    bench.now = max(bench.now, engines.worker("e0").standing.retry_at)
    for name in engines.names:
        bench.hear(name, waiting=100 if name == "e0" else 0)
    outcome = bench.decide()
    assert outcome.endpoints[0].name == "e0"
    assert len(outcome.endpoints) == 3
    assert "failed 500" in outcome.trial
    assert bench.chosen() != "e0", "one trial at a time"


def test_schedulers_that_see_the_same_events_come_to_the_same_verdicts() -> None:
    benches = [Bench(scheduler=f"scheduler-{number}") for number in range(3)]
    for bench in benches:
        bench.join("a", "b", "c")
    for number in range(40):
        for bench in benches:
            bench.now += 0.01
            bench.fail(f"r{number}", "a", "b", outcome="failed", status=500)
            bench.pool.books.completed(("edge-1", f"r{number}"), bench.now, True, 1, 1.0, "b")
    verdicts = [
        [(each.worker.name, each.verdict, each.reason) for each in bench.pool.outliers.verdicts(bench.now)]
        for bench in benches
    ]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert [name for name, *_ in verdicts[0]] == ["a"]


def test_requests_that_answer_in_time_are_never_overdue() -> None:
    engines = Engines(2)
    engines.run(20.0, rate=100.0)
    assert engines.moved == []
    assert LEAST_S >= 1.0
