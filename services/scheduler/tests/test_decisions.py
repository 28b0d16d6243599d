"""The properties of every decision, with any plugins."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from pointsman_core.config import SchedulingPolicy
from pointsman_delay import estimator
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import ProfileHandler, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Selection
from pointsman_scheduler.domain import profile
from pointsman_scheduler.domain.outcome import Refused
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.plugins import HANDLERS, SCORERS, registries
from pointsman_scheduler.plugins.scorers import load
from pointsman_testing.scheduler_bench import Bench, explained

NAMES = [f"w{number}" for number in range(8)]


BY_LOAD = {
    "scorers": [
        {"use": "queue", "weight": 2},
        {"use": "kv-utilization", "weight": 2},
        {"use": "prefix-cache", "weight": 3},
    ]
}


def fresh(count: int = 8, settings: Mapping[str, object] | None = None) -> Bench:
    bench = Bench(settings)
    bench.join(*NAMES[:count])
    return bench


class _Prefers(Scorer):
    """Somebody's own idea of the best worker, in this process."""

    type_name = "prefers"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return np.array([float(worker.name == "w5") for worker in candidates.workers()])


@pytest.mark.requirement("S1-38")
@pytest.mark.parametrize("how", ["a scorer in this process", "a stage or a proxy before"])
def test_the_choice_may_be_a_third_partys_in_this_process_or_outside(how: str) -> None:
    """Beside this process or far from it, a stage over NATS writes what a proxy says in a header."""
    bench = fresh()
    request = bench.request()
    if how == "a scorer in this process":
        extended = registries()._replace(scorers=Registry(Scorer, (*SCORERS, _Prefers)))
        settings = SchedulingPolicy.model_validate({"scorers": ["prefers"]})
        bench.policy = compile_policy("chat", settings, extended)
    else:
        request.facts = replace(request.facts, workers=("w5",))
    outcome = bench.decide(request)
    assert outcome.endpoints[0].name == "w5"
    assert outcome.holds[0].worker.name == "w5"


def test_a_given_worker_is_on_the_books_and_the_others_say_why_they_are_not_it() -> None:
    bench = fresh(3)
    outcome = bench.decide(bench.request(workers=("w1",)))
    assert [worker.name for worker in outcome.endpoints] == ["w1"]
    assert explained(outcome)[0][0].candidates.filtered == {
        "w0": "given-worker: another worker was given with the request",
        "w2": "given-worker: another worker was given with the request",
    }


@pytest.mark.parametrize(("earlier", "cached"), [(None, 0), (0, 0), (63, 0), (6500, 6464)])
def test_the_turns_that_an_engine_keeps_are_counted_as_cached_there_in_whole_blocks(
    earlier: int | None, cached: int
) -> None:
    bench = fresh(3)
    request = bench.request(workers=("w1",), continued_tokens=earlier, prompt_tokens=7000, block_tokens=64)
    outcome = bench.decide(request)
    [hold] = outcome.holds
    assert (outcome.cached_tokens, hold.change.prompt_tokens, hold.change.uncached_tokens) == (
        cached, 7000, 7000 - cached,
    )  # fmt: skip


def test_an_unknown_given_worker_is_400() -> None:
    bench = fresh(3)
    refused = bench.refused(bench.request(workers=("w9",)))
    assert (refused.refusal.status, refused.refusal.code) == (400, "unknown_worker")


def test_64_identical_prompts_at_once_spread_evenly_although_no_report_shows_them() -> None:
    bench = fresh()
    bench.now += 2.0  # the signals are frozen
    served = Counter(bench.chosen(bench.request(prompt_tokens=32), seed) for seed in range(64))
    assert max(served.values()) / 8 <= 1.25


def test_64_identical_prompts_at_three_schedulers_that_have_not_heard_each_other_yet_spread_well() -> None:
    benches = [Bench(scheduler=f"scheduler-{number}") for number in range(3)]
    for bench in benches:
        bench.join(*NAMES)
        bench.now += 2.0
    served = Counter(
        benches[number % 3].chosen(benches[number % 3].request(prompt_tokens=32), seed=number * 7919)
        for number in range(64)
    )
    assert max(served.values()) / 8 <= 1.5


def test_16_prompts_at_once_with_a_long_prefix_that_no_worker_holds_are_computed_by_at_most_two() -> None:
    bench = fresh()
    served = Counter(bench.chosen(bench.prompt(family=1, blocks=125, own_blocks=1), seed) for seed in range(16))
    assert len(served) <= 2


@pytest.mark.requirement("S2-10", "S2-12")
def test_two_prompts_10_ms_apart_with_the_same_prefix_go_to_one_engine() -> None:
    bench = fresh()
    first = bench.chosen(bench.prompt(family=1, blocks=40))
    bench.now += 0.01
    assert bench.chosen(bench.prompt(family=1, blocks=40)) == first


@pytest.mark.parametrize(
    ("precise", "told", "prefix"),
    [
        (True, "boot", "precise"),
        (True, "", "approximate"),
        (True, "former", "approximate"),
        (False, "boot", "approximate"),
    ],
)
def test_a_decision_says_how_it_knows_what_is_cached(precise: bool, told: str, prefix: str) -> None:
    bench = fresh(1)
    worker = bench.pool.fleet.find(NAMES[0])
    assert worker is not None
    worker.kv_told = worker.registration.boot_id if told == "boot" else told
    request = bench.prompt(family=1, blocks=4)
    request.facts = replace(request.facts, blocks_precise=precise)
    assert bench.decide(request).prefix == prefix
    assert bench.decide(bench.request(prompt_tokens=8)).prefix == ""


@pytest.mark.requirement("S1-36")
def test_a_scheduler_that_lost_its_index_serves_every_request_and_learns_anew() -> None:
    warm, wiped = fresh(), fresh()
    prompts = range(20)
    for family in prompts:
        warm.chosen(warm.prompt(family=family, blocks=40))

    def held(bench: Bench) -> int:
        outcomes = [bench.decide(bench.prompt(family=family, blocks=40)) for family in prompts]
        assert all(outcome.endpoints for outcome in outcomes)
        return sum(outcome.sight.figures[4].max() > 0 for outcome in outcomes)

    assert held(warm) == 20
    assert held(wiped) == 0
    assert held(wiped) == 20


@pytest.mark.requirement("S2-13", "S2-15")
def test_a_prefix_is_forgotten_when_the_request_that_would_have_computed_it_failed() -> None:
    bench = fresh()
    request = bench.prompt(family=1, blocks=40)
    dead = bench.chosen(request)
    bench.fail(request.request_id, dead)
    again = bench.decide(bench.prompt(family=1, blocks=40))
    assert again.endpoints[0].name != dead
    assert again.sight.figures[4].tolist() == [0.0] * 8


def test_a_request_that_is_sent_again_goes_to_the_same_endpoint_and_is_on_the_books_once() -> None:
    bench = fresh()
    request = bench.prompt(family=1, blocks=10)
    first = bench.decide(request, seed=1)
    for _ in range(20):
        bench.chosen()
    again = bench.decide(bench.prompt(family=1, blocks=10, request_id=request.request_id, attempt=2), seed=2)
    assert again.held
    assert again.endpoints[0] is first.endpoints[0]
    assert again.holds == []
    assert first.endpoints[0].context_tokens == 640 + 100 * (first.endpoints[0].open - 1)


def test_another_scheduler_sends_it_to_the_endpoint_that_the_first_chose() -> None:
    one, two = Bench(), Bench(scheduler="scheduler-2")
    for bench in (one, two):
        bench.join(*NAMES)
    request = one.request()
    first = one.decide(request)
    assert two.pool.books.apply(first.holds[0].change, "scheduler-1", two.now)
    for seed in range(5):
        again = two.decide(two.request(request_id=request.request_id, attempt=2), seed)
        assert (again.held, again.endpoints[0].name) == (True, first.endpoints[0].name)


def test_a_request_that_is_sent_again_goes_elsewhere_when_its_endpoint_is_out() -> None:
    bench = fresh()
    request = bench.request()
    first = bench.chosen(request)
    bench.hear(first, state="draining")
    again = bench.decide(bench.request(request_id=request.request_id, attempt=2))
    assert again.endpoints[0].name != first
    assert [hold.worker for hold in again.holds] == again.endpoints[:1]
    assert sum(worker.open for worker in bench.pool.fleet.workers) == 1


@pytest.mark.requirement("S2-20")
def test_a_dead_endpoint_is_out_of_every_decision_at_once() -> None:
    bench = fresh()
    request = bench.request()
    dead = bench.chosen(request)
    bench.fail(request.request_id, dead, outcome="refused")
    for seed in range(50):
        assert dead not in {worker.name for worker in bench.decide(seed=seed).endpoints}


def test_a_demoted_endpoint_gets_one_request_to_try_and_is_back_when_it_answers() -> None:
    bench = fresh(2, BY_LOAD)
    bench.fail("x", "w0")
    bench.now += 1.01
    bench.hear("w0")
    bench.hear("w1", waiting=50)
    trial = bench.request()
    assert bench.chosen(trial) == "w0"
    assert [bench.chosen() for _ in range(5)] == ["w1"] * 5
    bench.pool.books.started(trial.key, "w0", 5.0, bench.now)
    assert bench.chosen() == "w0"


def test_a_trial_that_fails_is_followed_by_a_longer_wait() -> None:
    bench = fresh(2, BY_LOAD)
    bench.fail("x", "w0")
    tries: list[float] = []
    began = bench.now
    while bench.now < began + 20:
        bench.now += 0.1
        bench.hear("w0")
        bench.hear("w1", waiting=50)
        request = bench.request()
        if bench.chosen(request) == "w0":
            tries.append(bench.now - began)
            bench.fail(request.request_id, "w0", "w1")
        bench.pool.books.completed(request.key, bench.now, ok=True)
    assert tries == pytest.approx([1.0, 3.0, 7.0, 13.0, 19.0], abs=0.15)


def test_one_bad_answer_demotes_no_worker_and_three_in_a_row_do() -> None:
    bench = fresh(2)
    for count in range(3):
        assert "w0" in bench.survivors(), count
        bench.fail("x", "w0", outcome="failed", status=500)
    assert bench.survivors() == {"w1"}


def test_an_answer_between_failures_keeps_the_endpoint_in() -> None:
    bench = fresh(1)
    for _ in range(10):
        for _ in range(2):
            bench.fail("x", "w0", outcome="failed", status=500)
        bench.serve()
    assert not bench.pool.fleet.workers[0].standing.ejected


def test_ten_thousand_client_errors_demote_no_worker() -> None:
    bench = fresh(2)
    for _ in range(10_000):
        bench.fail("x", "w0", outcome="failed", status=400)
    assert bench.survivors() == {"w0", "w1"}


def test_when_all_are_demoted_all_are_tried() -> None:
    bench = fresh(3)
    for name in NAMES[:3]:
        bench.fail("x", name)
    assert bench.survivors() == {"w0", "w1", "w2"}


def test_an_engine_that_restarts_is_trusted_anew_and_its_former_requests_and_prefixes_are_gone() -> None:
    bench = fresh(2)
    request = bench.prompt(family=1, blocks=10)
    dead = bench.chosen(request)
    bench.pool.books.started(request.key, dead, 5.0, bench.now)
    bench.fail("x", dead)
    bench.join(dead, boot_id="life-2")
    outcome = bench.decide(bench.prompt(family=1, blocks=10))
    assert dead in {worker.name for worker in outcome.endpoints}
    assert outcome.sight.figures[4].tolist() == [0.0, 0.0]
    worker = bench.pool.fleet.find(dead)
    assert worker is not None
    assert worker.open == (outcome.endpoints[0] is worker)
    bench.pool.books.completed(request.key, bench.now, ok=True)
    assert worker.open == (outcome.endpoints[0] is worker)


def test_word_of_a_former_life_does_not_count() -> None:
    bench = fresh(2)
    bench.join("w0", boot_id="life-2")
    assert not bench.hear("w0", boot_id="life-1", state="unreachable")
    bench.fail("x", "w0", boot_id="life-1")
    assert bench.survivors() == {"w0", "w1"}


def test_a_worker_that_lapses_and_returns_in_the_same_life_finds_its_books_and_prefixes() -> None:
    bench = fresh(2)
    home = bench.serve(bench.prompt(family=1, blocks=10))
    open_request = bench.prompt(family=1, blocks=10)
    assert bench.chosen(open_request) == home
    bench.pool.remove(home, bench.now)
    assert bench.chosen() != home
    bench.join(home)
    outcome = bench.decide(bench.prompt(family=1, blocks=10))
    assert outcome.cached_tokens == 640
    worker = bench.pool.fleet.find(home)
    assert worker is not None
    assert worker.open == 1 + (outcome.endpoints[0] is worker)


def test_old_figures_lose_weight() -> None:
    bench = Bench({"filters": [], "scorers": ["queue"]})
    bench.join("old", "new")
    bench.hear("old", waiting=100)
    for age in (0.4, 2.0, 3.5):
        bench.now = 1000.0 + age
        bench.hear("new", waiting=10)
        bench.pool.fleet.refresh(bench.now)
        waiting = dict(zip(bench.pool.fleet.names, bench.pool.fleet.waiting.tolist(), strict=True))
        expected = {0.4: 100.0, 2.0: 61.43, 3.5: 10.0}[age]
        assert waiting == pytest.approx({"old": expected, "new": 10.0}, rel=0.001)


def test_a_request_counts_from_its_choice_until_it_ends_whatever_reports_show_of_it() -> None:
    bench = fresh(1)

    def waiting_and_running() -> tuple[int, int]:
        waiting, running, _ = bench.pool.fleet.workers[0].load()
        return waiting, running

    request = bench.request()
    bench.decide(request)
    assert waiting_and_running() == (1, 0)
    bench.now += 0.02
    bench.hear("w0")  # too soon to show it
    assert waiting_and_running() == (1, 0)
    bench.pool.books.started(request.key, "w0", 5.0, bench.now)
    assert waiting_and_running() == (0, 1)
    bench.now += 0.1
    bench.hear("w0", running=1)  # shows it
    assert waiting_and_running() == (0, 1)
    bench.pool.books.completed(request.key, bench.now, ok=True)
    assert waiting_and_running() == (0, 0)
    bench.now += 0.1
    bench.hear("w0", running=3)  # others use the engine too
    assert waiting_and_running() == (0, 3)


class _Stubborn(ProfileHandler):
    """Never has enough."""

    type_name = "stubborn"

    def pick(self, request: ScheduleRequest, profiles: object, results: object) -> tuple[str, ...]:
        return ("default",)

    def process_results(self, request: ScheduleRequest, results: object) -> Selection | None:
        return None


class _Idle(_Stubborn):
    """Runs nothing."""

    type_name = "idle"

    def pick(self, request: ScheduleRequest, profiles: object, results: object) -> tuple[str, ...]:
        return ()


@pytest.mark.requirement("S2-28", "S2-30", "S2-46")
@pytest.mark.parametrize(("handler", "runs"), [("stubborn", 1), ("idle", 0)])
def test_a_handler_can_neither_loop_nor_pass_for_a_decision(handler: str, runs: int) -> None:
    bench = fresh(1)
    extended = registries()._replace(handlers=Registry(ProfileHandler, (*HANDLERS, _Stubborn, _Idle)))
    policy = compile_policy("default", SchedulingPolicy.model_validate({"handler": handler}), extended)
    outcome = bench.pool.decide(bench.request(), bench.now, 1, policy)
    assert isinstance(outcome, Refused)
    assert len(outcome.runs) == runs
    assert outcome.refusal.status == 500


def history(bench: Bench) -> list[tuple[list[str], list[float]]]:
    """Some hundred requests of all kinds, and what was decided."""
    dice = np.random.default_rng(3)
    found: list[tuple[list[str], list[float]]] = []
    for number in range(300):
        bench.now += 0.01
        if number % 5 == 0:
            for name in NAMES:
                bench.hear(name, running=int(dice.integers(0, 9)), kv_usage=float(dice.random()))
        request = bench.prompt(family=int(dice.integers(0, 6)), blocks=20, own_blocks=2)
        outcome = bench.decide(request, seed=number)
        run = outcome.selection.primary
        assert run.scores is not None
        found.append(([worker.name for worker in outcome.endpoints], list(run.scores[-1])))
        bench.pool.books.started(request.key, outcome.endpoints[0].name, 5.0, bench.now)
        if number % 3:
            bench.pool.books.completed(request.key, bench.now, ok=True)
    return found


@pytest.mark.parametrize("settings", [{}, BY_LOAD], ids=["the default policy", "by load"])
def test_few_workers_are_decided_among_as_many_are(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_numbers = history(fresh(settings=settings))
    for module in (profile, estimator, load):
        monkeypatch.setattr(module, "FEW", 0)
    assert history(fresh(settings=settings)) == as_numbers


@pytest.mark.requirement("S2-3")
def test_the_same_history_leads_to_the_same_choices_and_scores() -> None:
    one, two = fresh(), Bench()
    two.join(*reversed(NAMES))  # who joined first doesn't matter
    assert history(one) == history(two)


def test_every_candidate_is_published_with_its_figures_scores_and_reasons() -> None:
    bench = fresh(3, BY_LOAD)
    bench.hear("w2", state="draining")
    bench.now += 0.123
    bench.hear("w0", waiting=2, running=5, kv_usage=0.25)
    outcome = bench.decide(bench.prompt(family=1, blocks=4))
    (run,), reason = explained(outcome)
    columns = run.candidates
    assert columns.workers == ("w0", "w1", "w2")
    assert columns.ages_ms == (0.0, 123.0, 123.0)
    assert (columns.waiting, columns.running, columns.kv_usage) == ((2, 0, 0), (5, 0, 0), (0.25, 0.0, 0.0))
    assert columns.scores == {
        "queue": (0.0, 1.0, None),
        "kv-utilization": (0.75, 1.0, None),
        "prefix-cache": (0.0, 0.0, None),
    }
    assert columns.totals == (1.5, 4.0, None)
    assert columns.filtered == {"w2": "healthy: draining"}
    assert run.weights == {"queue": 2.0, "kv-utilization": 2.0, "prefix-cache": 3.0}
    assert run.chosen == ("w1", "w0")
    assert reason == (
        "w1 scored 4.00 (queue 2 * 1.00, kv-utilization 2 * 1.00, prefix-cache 3 * 0.00); next w0 with 1.50"
    )


def test_a_worker_that_never_reported_has_no_age() -> None:
    bench = Bench({"filters": [], "scorers": ["queue"]})
    bench.register("w0")
    outcome = bench.decide()
    assert explained(outcome)[0][0].candidates.ages_ms == (-1.0,)
    assert outcome.reasons == ["the load report of w0 never came"]


def test_of_many_candidates_the_best_are_published_and_the_others_counted() -> None:
    bench = Bench(BY_LOAD)
    names = [f"w{number:03d}" for number in range(300)]
    bench.join(*names)
    for number, name in enumerate(names):
        bench.hear(name, waiting=number)
    for name in names[250:]:
        bench.hear(name, state="draining")
    outcome = bench.decide()
    (run,), _ = explained(outcome, shown=20)
    assert run.candidates.omitted == 280
    assert len(run.candidates.workers) == 20
    assert set(run.chosen) <= set(run.candidates.workers)
    assert "w019" in run.candidates.workers
    everyone = explained(outcome, shown=300)[0][0].candidates
    assert everyone.omitted == 0
    assert len(everyone.filtered) == 50


def test_a_single_candidate_is_published_as_well() -> None:
    bench = fresh(1, BY_LOAD)
    (run,), reason = explained(bench.decide())
    assert run.candidates.totals == (4.0,)
    assert "next" not in reason


def test_candidates_narrow_without_losing_their_rows() -> None:
    bench = fresh(8)
    bench.decide()
    everyone: Candidates = bench.decide().selection.primary.candidates
    odd = everyone.keep(np.arange(8) % 2 == 1)
    last = odd.keep(np.array([False, False, False, True]))
    assert [worker.name for worker in odd.workers()] == ["w1", "w3", "w5", "w7"]
    assert (last.size, last.row(0), last.worker(0).name) == (1, 7, "w7")


@pytest.mark.parametrize("kv_usage", [float("nan"), -1.0, 7.0, float("inf")])
def test_figures_that_can_not_be_do_no_harm(kv_usage: float) -> None:
    bench = fresh(3, BY_LOAD)
    bench.hear("w1", kv_usage=kv_usage, waiting=-5, running=-5)
    columns = explained(bench.decide())[0][0].candidates
    assert all(0 <= value <= 1 for value in columns.kv_usage)
    assert columns.waiting == columns.running == (0, 0, 0)


@pytest.mark.parametrize("url", ["", "w9:8000", "ftp://w9", "http://", "http://w9:port", "http://w9:99999"])
def test_a_registration_without_a_usable_url_changes_nothing(url: str) -> None:
    bench = fresh(2)
    with pytest.raises(ValueError, match=r".+"):
        bench.register("w0", url=url)
    with pytest.raises(ValueError, match=r".+"):
        bench.register("w9", url=url)
    outcome = bench.decide()
    assert {worker.address for worker in outcome.endpoints} == {"w0:8000", "w1:8000"}
