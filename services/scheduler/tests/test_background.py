"""Background requests go only where they delay others by less than the bound, and leave when others come."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_core.config.flow_control import Background
from pointsman_delay.pass_model import Rates
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.background import (
    MOST_STOPS,
    OpenRequestsOfEngine,
    PromptTime,
    count_starting,
    is_within_bound,
)
from pointsman_scheduler.domain.late_binding import Because
from pointsman_scheduler.domain.outcome import Postponed, Refused, Scheduled
from pointsman_testing.scheduler_bench import Bench

RULE = Background(harm=0.03, alone=4, prompts=2)
RATES = Rates(prefill=15.0, linear=0.02, square=0.0, pairs=0.0, decode=8.0, batch=0.05, growth=4e-5)
counts = st.integers(0, 200)
tokens = st.floats(0.0, 1e6)


class Fill(Bench):
    """A pool whose rule allows an engine four background requests while it has no others."""

    def __init__(self, *engines: str, scheduler: str = "scheduler-1") -> None:
        super().__init__({"flow_control": {"background": {"alone": 4, "prompts": 4}, "ttl": "20s"}}, scheduler)
        self.join(*engines)

    def offer(self, **facts: object) -> ScheduleRequest:
        """A background request comes, and waits."""
        request = self.request(priority=BATCH_PRIORITY, stream=False, **facts)
        assert isinstance(self.pool.decide(request, self.now, 1, self.policy), Postponed)
        return request

    def look(self, after: float = 0.05) -> list[tuple[ScheduleRequest, str]]:
        """The background requests that go to an engine after so many seconds, and the engines."""
        self.now += after
        for name in self.pool.fleet.names:
            self.hear(name)
        gone: list[tuple[ScheduleRequest, str]] = []
        for bound in self.pool.bind(self.now):
            outcome = self.pool.decide(bound.request, self.now, 1, self.policy)
            if isinstance(outcome, Scheduled):
                gone.append((bound.request, outcome.endpoints[0].name))
        return gone

    def stopped(self, after: float = 0.05) -> list[Hold]:
        self.now += after
        return self.pool.find_stopped(self.now)


@given(others=counts, background=counts, context=tokens, own=tokens)
def test_within_the_bound_no_step_of_others_is_longer_by_more_than_the_share(
    others: int, background: int, context: float, own: float
) -> None:
    work = OpenRequestsOfEngine(others, context, 0.0, background, own, 0)
    if others and background and is_within_bound(RULE, RATES, 8192.0, work):
        alone = RATES.decode + RATES.batch * others + RATES.growth * context
        assert alone + RATES.batch * background + RATES.growth * own <= alone * (1 + RULE.harm) + 1e-9
        assert background <= RULE.alone
        assert is_within_bound(RULE, RATES, 8192.0, work._replace(background=background - 1))


@given(
    others=counts,
    running=st.integers(0, 4),
    sizes=st.lists(st.floats(1.0, 1e5), min_size=1, max_size=4),
    alone=st.integers(1, 6),
    prompts=st.integers(1, 3),
)
def test_prompts_begin_together_within_the_bound_and_one_begins_alone_only_where_nothing_of_its_kind_runs(
    others: int, running: int, sizes: list[float], alone: int, prompts: int
) -> None:
    rule = Background(harm=0.03, alone=alone, prompts=prompts)
    work = OpenRequestsOfEngine(others, others * 1000.0, 0.0, running, running * 500.0, 0)
    starting = count_starting(rule, RATES, 8192.0, work, sizes)
    after = work
    for each in sizes[:starting]:
        after = after.with_background(each)
    assert not starting or is_within_bound(rule, RATES, 8192.0, after)
    assert starting <= prompts
    if running:
        assert starting in (0, min(prompts, len(sizes)))
    else:
        assert starting or not is_within_bound(rule, RATES, 8192.0, work.with_background(sizes[0]))


@given(costs=st.lists(st.tuples(st.floats(0.0, 500.0), st.floats(0.1, 300.0)), max_size=60))
def test_prompts_take_no_more_than_their_share_of_the_time(costs: list[tuple[float, float]]) -> None:
    time, now, spent = PromptTime(0.0), 0.0, 0.0
    for passed, cost in costs:
        now += passed
        if time.may_spend(cost, RULE.prompt_time, now):
            time.spend(cost)
            spent += cost
    assert spent <= RULE.prompt_time * now + 1e-6


def test_no_background_request_runs_beside_a_long_prompt_that_no_step_of_others_shares() -> None:
    """Its passes would take longer by a whole step."""
    beside = OpenRequestsOfEngine(1, 30_000.0, 30_000.0, 1, 100.0, 0)
    assert not is_within_bound(RULE, RATES, 8192.0, beside)
    assert is_within_bound(RULE, RATES, 8192.0, beside._replace(left_tokens=0.0))
    assert is_within_bound(RULE, RATES, 8192.0, beside._replace(background=0))


def test_an_engine_without_other_requests_takes_as_many_as_it_may_and_the_rest_wait() -> None:
    fill = Fill("a", "b")
    requests = [fill.offer() for _ in range(12)]
    gone = fill.look()
    assert [request for request, _ in gone] == requests[:8]
    assert sorted(engine for _, engine in gone) == ["a"] * 4 + ["b"] * 4
    assert fill.look(2.0) == []
    assert len(fill.pool.binder) == 4


def test_an_engine_whose_step_times_are_unknown_takes_one_beside_others() -> None:
    fill = Fill("a")
    fill.decide(fill.request())
    fill.offer()
    fill.offer()
    assert fill.look() == []
    assert len(fill.look(2.0)) == 1, "its prompt counts as computed by then, though no first token was reported"
    assert fill.look(2.0) == []


def test_background_requests_leave_the_engine_that_other_requests_come_to_and_the_last_go_first() -> None:
    fill = Fill("a")
    first = fill.offer()
    fill.look()
    later = [fill.offer() for _ in range(3)]
    assert len(fill.look(1.5)) == 3
    assert fill.stopped() == []
    fill.decide(fill.request())
    stopped = fill.stopped()
    assert {hold.request for hold in stopped} == {request.key for request in later}
    assert fill.stopped() == [], "each is named once"
    assert fill.pool.books.find_reservation(first.key) is not None


def test_a_stopped_request_waits_again_and_stays_after_it_was_stopped_twice() -> None:
    fill = Fill("a")
    request = fill.offer()
    for attempt in range(1, MOST_STOPS + 2):
        ((gone, _),) = fill.look(2.0)
        assert gone.key == request.key
        others = [fill.request(), fill.request(priority=BATCH_PRIORITY, workers=("a",), stream=False)]
        for other in others:
            fill.decide(other)
        found = [hold.request for hold in fill.stopped()]
        for other in others:
            fill.pool.books.completed(other.key, fill.now, ok=True)
        if attempt > MOST_STOPS:
            assert found == []
            return
        assert found == [request.key]
        # Its edge's report of the stop comes later.
        request = fill.request(
            request_id=request.request_id, attempt=attempt + 1, priority=BATCH_PRIORITY, stream=False
        )
        assert isinstance(fill.pool.decide(request, fill.now, 1, fill.policy), Postponed)
        assert fill.pool.books.find_reservation(request.key) is None


def test_a_request_that_waits_in_vain_is_refused() -> None:
    fill = Fill("a")
    for _ in range(4):
        fill.offer()
    fill.look()
    waiting = fill.offer()
    fill.now += 21.0
    (bound,) = fill.pool.bind(fill.now)
    assert (bound.request, bound.because) == (waiting, Because.NO_CAPACITY)
    outcome = fill.pool.decide(bound.request, fill.now, 1, fill.policy)
    assert isinstance(outcome, Refused)
    assert (outcome.refusal.status, outcome.refusal.code) == (429, "no_capacity_left")


def test_a_request_that_is_over_or_was_sent_again_waits_once() -> None:
    fill = Fill("a")
    request = fill.offer()
    assert isinstance(fill.pool.decide(request, fill.now, 1, fill.policy), Postponed)
    assert len(fill.pool.binder) == 1
    assert fill.pool.binder.cancel(request.key)
    assert not fill.pool.binder.cancel(request.key)
    assert fill.look() == []


def test_a_request_of_a_batch_that_has_its_engine_goes_there_again() -> None:
    fill = Fill("a", "b")
    request = fill.offer()
    ((_, engine),) = fill.look()
    again = fill.pool.decide(
        fill.request(request_id=request.request_id, priority=BATCH_PRIORITY, stream=False), fill.now, 1, fill.policy
    )
    assert isinstance(again, Scheduled)
    assert again.endpoints[0].name == engine


def test_the_work_of_other_schedulers_counts_and_only_own_requests_are_stopped() -> None:
    fill = Fill("a")
    theirs = fill.request()
    fill.place(theirs, "a")
    fill.offer()
    assert fill.look() == [], "its prompt isn't computed yet"
    fill.pool.books.started(theirs.key, "a", 5.0, fill.now)
    assert len(fill.look()) == 1, "one beside a request whose cost is unknown"
    fill.offer()
    assert fill.look() == []
    assert fill.stopped() == []


def test_without_flow_control_a_background_request_goes_at_once() -> None:
    bench = Bench({"flow_control": {"enabled": False}})
    bench.join("a")
    outcome = bench.pool.decide(bench.request(priority=BATCH_PRIORITY), bench.now, 1, bench.policy)
    assert isinstance(outcome, Scheduled)
