"""Sessions that stay with their engine, past filters and scorers."""

from collections import Counter

import pytest
from pydantic import ValidationError

from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.plugins import FILTERS, registries
from pointsman_testing.scheduler_bench import Bench, explained

STICKY = {"sticky": {"for": "5m"}}
NAMES = [f"w{number}" for number in range(6)]


def bench(settings: dict[str, object] | None = None, scheduler: str = "scheduler-1") -> Bench:
    made = Bench(settings or STICKY, scheduler)
    made.join(*NAMES)
    return made


class _Counts(Filter):
    """Counts its calls."""

    type_name = "counts"
    calls = 0

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        type(self).calls += 1
        return None


@pytest.mark.requirement("S3-27")
def test_a_bound_session_stays_past_filters_and_scorers_and_the_decision_says_so() -> None:
    made = bench()
    extended = registries()._replace(filters=Registry(Filter, (*FILTERS, _Counts)))
    settings = SchedulingPolicy.model_validate({**STICKY, "filters": ["counts"], "scorers": ["queue"]})
    made.policy = compile_policy("default", settings, extended)
    made.pool.use([made.policy])
    first = made.serve(made.request(session="a"))
    before = _Counts.calls
    for name in NAMES:
        made.hear(name, sequence=2, running=0 if name != first else 4)
    outcome = made.decide(made.request(session="a"))
    assert outcome.endpoints[0].name == first
    assert _Counts.calls == before
    runs, reason = explained(outcome)
    assert reason == f"{first} serves this session, which stays with it"
    assert (runs[0].profile, runs[0].chosen[0]) == ("sticky", first)
    assert len(outcome.endpoints) == 3
    assert made.decide(made.request(session="b")).runs[0].profile == "default"


@pytest.mark.parametrize("load", [{"waiting": 8}, {"kv_usage": 0.85}])
def test_a_session_leaves_a_saturated_engine_unless_that_is_no_exception(load: dict[str, object]) -> None:
    for unless, moves in ((["saturated", "gone"], True), (["gone"], False)):
        made = bench({"sticky": {"for": "5m", "unless": unless}})
        first = made.serve(made.request(session="a"))
        made.hear(first, sequence=2, **load)
        assert made.decide(made.request(session="a")).runs[0].profile == ("default" if moves else "sticky")


@pytest.mark.parametrize("end", ["left", "draining", "silent"])
def test_a_session_whose_engine_is_gone_finds_another_one_or_is_refused_as_configured(end: str) -> None:
    for unless in (["gone"], ["saturated"]):
        made = bench({"sticky": {"for": "5m", "unless": unless}})
        first = made.serve(made.request(session="a"))
        if end == "left":
            made.pool.remove(first, made.now)
        elif end == "draining":
            made.hear(first, sequence=2, state="draining")
        else:
            for _ in range(20):
                made.now += 1.0
                for name in NAMES:
                    if name != first:
                        made.hear(name, sequence=2)
        if "gone" in unless:
            assert made.chosen(made.request(session="a")) != first
        else:
            refusal = made.refused(made.request(session="a")).refusal
            assert (refusal.status, refusal.code) == (503, "session_engine_gone")


def test_a_session_is_free_after_its_time() -> None:
    made = bench({"sticky": {"for": "10s"}})
    made.serve(made.request(session="a"))
    made.now += 11.0
    for name in NAMES:
        made.hear(name, sequence=2)
    assert made.decide(made.request(session="a")).runs[0].profile == "default"


def test_adapters_subsets_and_second_decisions_are_decided_as_any_other_request() -> None:
    made = bench()
    made.serve(made.request(session="a"))
    for facts in ({"subset": ("w1", "w2")}, {"workers": ("w3",)}, {"attempt": 2, "decision": 2}):
        assert made.decide(made.request(session="a", **facts)).runs[0].profile == "default"


@pytest.mark.requirement("S3-27")
def test_a_request_that_is_sent_again_because_a_scheduler_died_stays_too() -> None:
    made = bench()
    first = made.serve(made.request(session="a"))
    outcome = made.decide(made.request(session="a", attempt=2))
    assert (outcome.runs[0].profile, outcome.endpoints[0].name) == ("sticky", first)


def test_legs_on_two_engines_and_sticky_sessions_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="needs the handler `single`"):
        SchedulingPolicy.model_validate({**STICKY, "handler": "data-parallel"})


@pytest.mark.requirement("S3-27")
def test_a_session_is_bound_on_a_replica_that_hears_of_its_end_first() -> None:
    made, peer = bench(), bench(scheduler="scheduler-2")
    request = made.request(session="a")
    outcome = made.decide(request)
    books = peer.pool.books
    books.completed(request.key, peer.now, ok=True)
    assert not books.apply(outcome.holds[0].change, made.pool.scheduler, peer.now)
    assert len(books) == 0
    again = peer.decide(peer.request(session="a"))
    assert (again.runs[0].profile, again.endpoints[0].name) == ("sticky", outcome.endpoints[0].name)


@pytest.mark.requirement("S3-27")
def test_a_thousand_sessions_over_three_schedulers_keep_their_engine_through_ones_death() -> None:
    schedulers = [bench(scheduler=f"scheduler-{number}") for number in range(3)]
    engines: dict[str, str] = {}
    turns = Counter[str]()

    def turn(session: str, made: Bench) -> str:
        request = made.request(session=session)
        outcome = made.decide(request, seed=int(session[1:]))
        worker = outcome.endpoints[0].name
        turns[outcome.runs[0].profile] += 1
        for other in schedulers:
            if other is not made:
                other.pool.books.apply(outcome.holds[0].change, made.pool.scheduler, other.now)
        for each in schedulers:
            each.pool.books.started(request.key, worker, 5.0, each.now)
            each.pool.books.completed(request.key, each.now, ok=True)
        return worker

    for number in range(1000):
        engines[f"s{number}"] = turn(f"s{number}", schedulers[number % 3])
    assert len(set(engines.values())) == len(NAMES)
    del schedulers[0]
    for number in range(1000):
        assert turn(f"s{number}", schedulers[number % 2]) == engines[f"s{number}"]
    assert turns == {"default": 1000, "sticky": 1000}
