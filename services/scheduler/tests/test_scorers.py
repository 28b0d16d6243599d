"""How well candidates suit a request, scorer by scorer."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from pointsman_contracts.scheduling import ReservationChange
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.arrays import Floats, Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.plugins import SCORERS, registries
from pointsman_scheduler.plugins.filters.narrowing import SloHeadroom, SloHeadroomParams
from pointsman_scheduler.plugins.producers.latency import PREDICTED_ITL_MS, PREDICTED_TTFT_MS
from pointsman_scheduler.plugins.scorers.latency import PredictedLatency, PredictedLatencyParams
from pointsman_scheduler.plugins.scorers.load import QueueLength, fewest_first
from pointsman_testing.scheduler_bench import Bench


def by(*scorers: object) -> Bench:
    return Bench({"filters": [], "scorers": list(scorers)})


def loads(bench: Bench, **columns: Mapping[str, float]) -> None:
    names = next(iter(columns.values()))
    bench.join(*names)
    for name in names:
        bench.hear(name, **{column: values[name] for column, values in columns.items()})


@pytest.mark.parametrize(
    ("scorer", "column", "figures", "expected"),
    [
        ("queue", "waiting", {"a": 0, "b": 5, "c": 10}, {"a": 1.0, "b": 0.5, "c": 0.0}),
        ("queue", "waiting", {"a": 3, "b": 3}, {"a": 1.0, "b": 1.0}),
        ("running", "running", {"a": 8, "b": 2, "c": 4}, {"a": 0.0, "b": 1.0, "c": 2 / 3}),
        ("kv-utilization", "kv_usage", {"a": 0.25, "b": 1.0}, {"a": 0.75, "b": 0.0}),
        ("load-aware", "waiting", {"a": 0, "b": 64, "c": 500}, {"a": 0.5, "b": 0.25, "c": 0.0}),
        ({"use": "load-aware", "threshold": 10}, "waiting", {"a": 5, "b": 10}, {"a": 0.25, "b": 0.0}),
    ],
)
def test_load_scorers_follow_their_formulas(
    scorer: object, column: str, figures: dict[str, float], expected: dict[str, float]
) -> None:
    bench = by(scorer)
    loads(bench, **{column: figures})
    assert bench.scores() == pytest.approx(expected)


def test_a_prefix_scores_by_the_part_of_the_full_blocks_that_is_held() -> None:
    bench = by("prefix-cache")
    bench.join("a", "b")
    home = bench.serve(bench.prompt(family=1, blocks=6))
    other = {"a": "b", "b": "a"}[home]
    assert bench.scores(bench.prompt(family=1, blocks=8)) == {home: 0.75, other: 0.0}
    whole = bench.prompt(family=1, blocks=6)
    whole.facts = replace(whole.facts, prompt_tokens=whole.facts.prompt_tokens + 63)
    assert bench.scores(whole) == {home: 1.0, other: 0.0}
    assert bench.scores(bench.request(prompt_tokens=63)) == {home: 0.0, other: 0.0}


def test_the_length_of_a_match_can_count_beside_its_share() -> None:
    bench = by({"use": "prefix-cache", "match_length_weight": 0.5, "match_length_scale": 640})
    bench.join("a", "b")
    home = bench.serve(bench.prompt(family=1, blocks=5))
    assert bench.scores(bench.prompt(family=1, blocks=10))[home] == pytest.approx(0.5 * 0.5 + 0.5 * 0.25)


@pytest.mark.requirement("S2-16")
def test_an_adapter_scores_by_where_it_is() -> None:
    bench = by("lora-affinity")
    bench.join("active", "room", "waiting", "full", loras=["sql"])
    bench.hear("active", running_loras=["sql", "x"], max_loras=2)
    bench.hear("room", running_loras=["x"], max_loras=2)
    bench.hear("waiting", running_loras=["x"], waiting_loras=["sql"], max_loras=2)
    bench.hear("full", running_loras=["x", "y"], max_loras=2)
    scores = bench.scores(bench.request(lora="sql"))
    assert scores == {"active": 1.0, "room": 0.8, "waiting": 0.6, "full": 0.0}
    assert set(bench.scores(bench.request()).values()) == {1.0}


@pytest.mark.requirement("S2-11", "S2-22")
def test_an_adapter_is_at_home_from_the_moment_a_request_for_it_is_sent_there() -> None:
    bench = by("lora-affinity")
    bench.join("a", "b", "c", "d", loras=["sql"])
    for name in "abcd":
        bench.hear(name, max_loras=1)
    home = bench.chosen(bench.request(lora="sql"))
    assert {bench.chosen(bench.request(lora="sql"), seed) for seed in range(10)} == {home}


def test_no_room_for_adapters_scores_nothing() -> None:
    bench = by("lora-affinity")
    bench.join("a", loras=["sql"])
    bench.hear("a", max_loras=0)
    assert bench.scores(bench.request(lora="sql")) == {"a": 0.0}


def test_active_requests_score_by_the_books_alone() -> None:
    bench = by("active-requests", {"use": "session", "weight": 0.001})
    bench.join("a", "b", "c")
    for name in "abc":
        bench.hear(name, running=50)
    home = bench.chosen(bench.request(session="s"))
    bench.use({"filters": [], "scorers": ["active-requests"]})
    assert bench.scores()[home] == 0.0


@pytest.mark.parametrize(
    ("params", "counts", "expected"),
    [
        ({}, (0, 1, 4), (1.0, 0.75, 0.0)),
        ({"idle_threshold": 1}, (0, 1, 4), (1.0, 1.0, 0.0)),
        ({"max_busy_score": 0.5}, (0, 2, 4), (1.0, 0.25, 0.0)),
        ({}, (0, 0, 0), (1.0, 1.0, 1.0)),
    ],
)
def test_active_requests_follow_their_formula(
    params: dict[str, object], counts: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    bench = by({"use": "active-requests", **params})
    bench.join("a", "b", "c")
    for name, count in zip("abc", counts, strict=True):
        for _ in range(count):
            assert bench.place(bench.request(), name)
    assert bench.scores() == pytest.approx(dict(zip("abc", expected, strict=True)))


def test_token_load_counts_what_is_to_be_computed_before_the_first_token() -> None:
    bench = by({"use": "token-load", "threshold": 1000})
    bench.join("a", "b")
    home = bench.serve(bench.prompt(family=1, blocks=10))
    other = {"a": "b", "b": "a"}[home]
    scores = bench.scores(bench.prompt(family=1, blocks=10))
    assert scores == pytest.approx({home: 1.0, other: 1.0 - 0.64})
    assert bench.scores(bench.request(prompt_tokens=10_000)) == {home: 0.0, other: 0.0}


def test_prompts_that_no_worker_holds_go_around() -> None:
    bench = by("no-hit-lru")
    bench.join("a", "b", "c", "d")
    first = [bench.chosen(bench.prompt(family=family, blocks=4)) for family in range(4)]
    assert sorted(first) == ["a", "b", "c", "d"]
    assert [bench.chosen(bench.prompt(family=family, blocks=4)) for family in range(10, 14)] == first
    warm = bench.scores(bench.prompt(family=0, blocks=4))
    assert set(warm.values()) == {0.5}


@pytest.mark.parametrize(
    ("hold", "next_in_turn"),
    [
        ({"uncached_tokens": 100}, "b"),
        ({"uncached_tokens": 99}, "a"),
        ({"uncached_tokens": 100, "leg": "prefill"}, "a"),
    ],
    ids=["cold", "warm", "prefill leg"],
)
def test_only_a_cold_prompt_at_the_worker_that_answers_is_a_turn(hold: dict[str, Any], next_in_turn: str) -> None:
    bench = by("no-hit-lru")
    bench.join("a", "b")
    for name in "ab":
        assert bench.place(bench.request(), name)
    worker = bench.pool.fleet.find("a")
    assert worker is not None
    bench.pool.books.put(
        Hold(
            ReservationChange(op="reserve", request_id="another", worker="a", prompt_tokens=100, **hold),
            worker,
            bench.now,
        ),
        bench.now,
    )
    assert bench.chosen() == next_in_turn


def test_turns_are_remembered_when_the_fleet_changes() -> None:
    bench = by("no-hit-lru")
    bench.join("a", "b", "c")
    assert bench.chosen() == "a"
    for name in "cb":
        assert bench.place(bench.request(), name)
    bench.join("d")
    assert bench.scores() == pytest.approx({"d": 1.0, "a": 2 / 3, "c": 1 / 3, "b": 0.0})


def test_one_candidate_has_no_other_to_go_around_with() -> None:
    bench = by("no-hit-lru")
    bench.join("a")
    assert bench.scores() == {"a": 1.0}


def test_a_session_scores_its_worker() -> None:
    bench = by("session")
    bench.join("a", "b", "c")
    assert set(bench.scores(bench.request(session="s")).values()) == {0.0}
    home = bench.chosen(bench.request(session="s"))
    assert bench.scores(bench.request(session="s")) == {name: float(name == home) for name in "abc"}


def test_replicas_agree_on_the_worker_of_a_session() -> None:
    one, two = by("session"), by("session")
    for bench in (one, two):
        bench.join("a", "b", "c", "d", "e", "f")
    outcome = one.decide(one.request(session="s"))
    assert two.pool.books.apply(outcome.holds[0].change, "scheduler-1", two.now)
    assert two.chosen(two.request(session="s"), seed=99) == outcome.endpoints[0].name


def train(bench: Bench, seconds_per_1000_tokens: float) -> None:
    """Every answer begins as late as its prompt is long; tokens follow every 10 ms."""
    for number in range(60):
        tokens = 500 * (1 + number % 7)
        request = bench.request(prompt_tokens=tokens)
        worker = bench.chosen(request, seed=number)
        bench.now += seconds_per_1000_tokens * tokens / 1000
        bench.pool.books.started(request.key, worker, seconds_per_1000_tokens * tokens, bench.now)
        bench.now += 0.5
        bench.pool.books.completed(request.key, bench.now, ok=True, output_tokens=51, duration_ms=500)
        for name in bench.pool.fleet.names:
            bench.hear(name)


def test_predicted_latency_prefers_the_worker_that_holds_the_prompt() -> None:
    bench = by("latency")
    bench.join("a", "b")
    train(bench, 0.1)
    home = bench.serve(bench.prompt(family=1, blocks=100))
    assert bench.scores(bench.prompt(family=1, blocks=100))[home] == pytest.approx(1.0)


def test_with_an_objective_those_that_keep_it_come_before_those_that_miss_it() -> None:
    bench = by("latency")
    bench.join("a", "b")
    train(bench, 0.1)
    home = bench.serve(bench.prompt(family=1, blocks=100))
    scores = bench.scores(bench.prompt(family=1, blocks=100, slo_ttft_ms=300.0))
    assert scores.pop(home) > 0.5
    assert max(scores.values()) <= 0.5


@pytest.mark.parametrize("prefer", ["least-headroom", "most-headroom"])
def test_a_worker_within_the_objective_scores_above_one_that_misses_it_by_a_hair(prefer: str) -> None:
    bench = by("latency")
    bench.join("a", "b", "c", "d")
    bench.decide()
    asked = bench.request(slo_ttft_ms=100.0)
    asked.put(MATCHED_TOKENS, np.zeros(4))
    asked.put(PREDICTED_TTFT_MS, np.array([1.0, 100.0, 100.1, 200.0]))
    asked.put(PREDICTED_ITL_MS, np.array([10.0, 10.0, 10.0, 10.0]))
    candidates = Candidates(bench.pool.fleet, bench.now, Dice(1), None)
    params = PredictedLatencyParams.model_validate({"prefer": prefer, "itl_weight": 0})
    scores: list[float] = PredictedLatency("latency", params, {}).score(asked, candidates).tolist()
    assert scores == pytest.approx([0.51, 1.0, 0.5, 0.0] if prefer == "least-headroom" else [1.0, 0.51, 0.5, 0.0])


def test_among_those_that_keep_the_objective_the_tightest_is_filled_first() -> None:
    bench = by("latency")
    bench.join("a", "b")
    train(bench, 0.1)
    home = bench.serve(bench.prompt(family=1, blocks=20))
    roomy = bench.prompt(family=1, blocks=20, slo_ttft_ms=5000.0)
    assert bench.chosen(roomy) != home
    bench.use({"filters": [], "scorers": [{"use": "latency", "prefer": "most-headroom"}]})
    train(bench, 0.1)
    assert bench.chosen(bench.prompt(family=1, blocks=20, slo_ttft_ms=5000.0)) == home


def test_without_predictions_load_and_prefix_decide() -> None:
    bench = by("latency")
    loads(bench, waiting={"a": 0, "b": 10}, kv_usage={"a": 0.0, "b": 0.9})
    assert bench.scores(bench.request()) == pytest.approx({"a": 2 / 3, "b": 0.1 / 3})


def test_headroom_keeps_those_predicted_to_be_in_time() -> None:
    bench = Bench({"filters": [{"use": "slo-headroom", "exploration": 0}], "scorers": ["latency"]})
    bench.join("a", "b")
    assert bench.survivors(bench.request(slo_ttft_ms=1.0)) == {"a", "b"}
    train(bench, 0.1)
    home = bench.serve(bench.prompt(family=1, blocks=100))
    assert bench.survivors(bench.prompt(family=1, blocks=100, slo_ttft_ms=300.0)) == {home}
    assert bench.survivors(bench.prompt(family=1, blocks=100, slo_ttft_ms=0.01)) == {"a", "b"}
    assert bench.survivors(bench.prompt(family=1, blocks=100)) == {"a", "b"}


def headroom(bench: Bench, names: str, slo: Mapping[str, float], exploration: float = 0, seed: int = 1) -> set[str]:
    """Whom `slo-headroom` keeps of `names` when a is slow to begin, b to go on, and c has no prediction."""
    asked = bench.request(**slo)
    asked.put(PREDICTED_TTFT_MS, np.array([900.0, 100.0, math.nan]))
    asked.put(PREDICTED_ITL_MS, np.array([10.0, 90.0, math.nan]))
    rows = None if len(names) == 3 else np.array(["abc".index(name) for name in names])
    candidates = Candidates(bench.pool.fleet, bench.now, Dice(seed), rows)
    kept = SloHeadroom("slo-headroom", SloHeadroomParams(exploration=exploration), {}).filter(asked, candidates)
    return set(names) if kept is None else {worker.name for worker in candidates.keep(kept.keep).workers()}


@pytest.mark.parametrize(
    ("slo", "names", "expected"),
    [
        ({}, "abc", "abc"),
        ({"slo_ttft_ms": 500.0}, "abc", "b"),
        ({"slo_ttft_ms": 900.0}, "abc", "ab"),
        ({"slo_itl_ms": 50.0}, "abc", "a"),
        ({"slo_itl_ms": 90.0}, "abc", "ab"),
        ({"slo_ttft_ms": 500.0, "slo_itl_ms": 50.0}, "abc", "abc"),
        ({"slo_ttft_ms": 1000.0, "slo_itl_ms": 50.0}, "abc", "a"),
        ({"slo_ttft_ms": 500.0}, "bc", "b"),
        ({"slo_itl_ms": 50.0}, "ac", "a"),
        ({"slo_itl_ms": 50.0}, "bc", "bc"),
    ],
)
def test_headroom_judges_each_objective_of_those_that_are_left(
    slo: dict[str, float], names: str, expected: str
) -> None:
    bench = Bench()
    bench.join("a", "b", "c")
    bench.decide()
    assert headroom(bench, names, slo) == set(expected)


def test_headroom_lets_a_share_of_requests_go_anywhere() -> None:
    bench = Bench()
    bench.join("a", "b", "c")
    bench.decide()
    kept = [headroom(bench, "abc", {"slo_ttft_ms": 500.0}, 0.3, seed) for seed in range(1000)]
    assert 230 <= kept.count({"a", "b", "c"}) <= 370


def test_dynamos_rule_adds_prompt_blocks_to_compute_and_blocks_in_use() -> None:
    bench = by("dynamo-cost")
    bench.join("a", "b", "c")
    # One holds 10 of 20 blocks and is idle, one serves another prompt of 8 blocks, one is idle and knows nothing.
    home = bench.serve(bench.prompt(family=1, blocks=10))
    busy, idle = {"a", "b", "c"} - {home}
    assert bench.place(bench.prompt(family=2, blocks=8), busy)
    costs = {home: 20 - 10 + 20, busy: 8 + 20 + 8 + 20, idle: 20 + 20}
    least, most = min(costs.values()), max(costs.values())
    scores = bench.scores(bench.prompt(family=1, blocks=10, own_blocks=10))
    assert scores == pytest.approx({name: (most - cost) / (most - least) for name, cost in costs.items()})


def test_blocks_that_open_requests_share_are_in_use_once() -> None:
    bench = by("dynamo-cost")
    bench.join("a", "b")
    first = bench.chosen(bench.prompt(family=1, blocks=20))
    shared = bench.scores(bench.prompt(family=1, blocks=20))
    other = {"a": "b", "b": "a"}[first]
    # Sharing: prompt blocks 20 (booked) + 20 - 20 (predicted cached), in use 20. Elsewhere: 20 and 20.
    assert shared[first] == shared[other] == 1.0


def test_an_ended_request_leaves_no_blocks_in_use() -> None:
    bench = by("dynamo-cost")
    bench.join("a", "b")
    for number in range(20):
        bench.serve(bench.prompt(family=number % 3, blocks=10), seed=number)
    producer = bench.policy.producers[0]
    assert vars(producer)["_used"] == {}
    assert vars(producer)["_held"] == {}


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_request_that_moves_under_another_policy_leaves_no_blocks_in_use(comes_back: bool) -> None:
    bench = by("dynamo-cost")
    bench.join("a", "b")
    request = bench.prompt(family=1, blocks=10)
    first = bench.chosen(request)
    second = {"a": "b", "b": "a"}[first]
    bench.pool.use([])
    bench.pool.books.started(request.key, second, 5.0, bench.now)
    bench.pool.use([bench.policy])
    if comes_back:
        bench.pool.books.started(request.key, first, 5.0, bench.now)
    bench.pool.books.completed(request.key, bench.now, ok=True)
    producer = bench.policy.producers[0]
    assert vars(producer)["_used"] == vars(producer)["_held"] == vars(producer)["_workers"] == {}


class _Wild(Scorer):
    """Any value that a foreign plugin might return."""

    type_name = "wild"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return np.array([math.nan, 7.0, -3.0, 0.5, math.inf, -math.inf])[: candidates.size]


@pytest.mark.requirement("S2-8")
def test_scores_outside_the_range_are_clamped_and_what_is_no_number_counts_as_nothing() -> None:
    bench = Bench()
    bench.join("a", "b", "c", "d", "e", "f")
    extended = registries()._replace(scorers=Registry(Scorer, (*SCORERS, _Wild)))
    settings = SchedulingPolicy.model_validate({"scorers": [{"use": "wild", "weight": 2}]})
    outcome = bench.pool.decide(bench.request(), bench.now, 1, compile_policy("wild", settings, extended))
    assert isinstance(outcome, Scheduled)
    run = outcome.selection.primary
    assert run.scores is not None
    assert list(run.scores[0]) == [0.0, 1.0, 0.0, 0.5, 1.0, 0.0]
    assert list(run.scores[-1]) == [0.0, 2.0, 0.0, 1.0, 2.0, 0.0]


CALLED: Final = ("queue", "kv-utilization")
PARAMETERS: Final[dict[str, dict[str, object]]] = {
    "least-of": {"of": CALLED},
    "greatest-of": {"of": CALLED},
    "score-by-condition": {"when": "always", "then": "queue"},
}
"""Of scorers that call others."""


def alone(scorer: type[Scorer]) -> dict[str, object]:
    """A policy that scores by this scorer alone."""
    parameters = PARAMETERS.get(scorer.type_name)
    if parameters is None:
        return {"filters": [], "scorers": [scorer.type_name]}
    called = CALLED if "of" in parameters else CALLED[:1]
    return {"deciders": ["always"], "filters": [], "scorers": [*called, {"use": scorer.type_name, **parameters}]}


@pytest.mark.requirement("S2-8")
@pytest.mark.parametrize("scorer", SCORERS, ids=lambda scorer: scorer.type_name)
def test_every_scorer_stays_within_bounds_whatever_the_load(scorer: type[Scorer]) -> None:
    bench = Bench(alone(scorer))
    names = [f"w{number}" for number in range(30)]
    bench.join(*names, loras=["sql"])
    dice = np.random.default_rng(7)
    for turn in range(50):
        bench.now += 0.01
        for name in names:
            bench.hear(
                name,
                running=int(dice.integers(0, 300)),
                waiting=int(dice.integers(0, 50)),
                kv_usage=float(dice.random()),
                running_loras=["sql"] if dice.random() < 0.3 else [],
                max_loras=int(dice.integers(0, 3)),
            )
        outcome = bench.decide(
            bench.prompt(family=turn % 5, blocks=8, own_blocks=3, lora="sql", session=f"s{turn % 4}"), seed=turn
        )
        run = outcome.selection.primary
        assert run.scores is not None
        score = bench.policy.profiles["default"].scorers[0].score
        raw = np.asarray(score(bench_request(bench, outcome), run.candidates))
        assert np.isfinite(raw).all()
        assert raw.min() >= -1e-12
        assert raw.max() <= 1 + 1e-12


def bench_request(bench: Bench, outcome: Scheduled) -> ScheduleRequest:
    """A request like the last one, with its attributes."""
    request = bench.prompt(family=1, blocks=8, lora="sql", session="s1")
    everyone = outcome.selection.primary.candidates
    request.attributes["matched-tokens"] = outcome.sight.figures[4]
    for producer in bench.policy.producers:
        producer.produce(request, everyone)
    return request


@pytest.mark.requirement("S2-36")
def test_a_scorer_gets_its_declared_inputs_and_nothing_else() -> None:
    for scorer in SCORERS:
        settings = SchedulingPolicy.model_validate(alone(scorer))
        policy = compile_policy("default", settings, registries())
        produced = {key.name for producer in policy.producers for key in producer.produces} | {"matched-tokens"}
        assert {key.name for key in scorer.consumes} <= produced


@pytest.mark.parametrize("count", [1, 2, 8, 100])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 3e307])
def test_the_fewest_first_are_scored_from_one_to_zero_without_clamping(count: int, scale: float) -> None:
    dice = np.random.default_rng(count)
    for _ in range(100):
        scores = np.array(fewest_first(dice.random(count) * scale))
        assert scores.max() == 1.0
        assert scores.min() == (0.0 if count > 1 else 1.0)


def test_a_scorer_that_replaces_a_bounded_one_is_clamped_unless_it_says_that_it_is_bounded_too() -> None:
    class Replaced(QueueLength):
        type_name = "replaced"

        def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
            return [2.0, 0.5]

    class Renamed(QueueLength):
        type_name = "renamed"

    class Told(Replaced):
        type_name = "told"
        bounded = True

    assert (QueueLength.bounded, Replaced.bounded, Renamed.bounded, Told.bounded) == (True, False, True, True)
    bench = Bench()
    bench.join("a", "b")
    extended = registries()._replace(scorers=Registry(Scorer, (*SCORERS, Replaced)))
    settings = SchedulingPolicy.model_validate({"scorers": [{"use": "replaced", "weight": 2}]})
    outcome = bench.pool.decide(bench.request(), bench.now, 1, compile_policy("replaced", settings, extended))
    assert isinstance(outcome, Scheduled)
    assert outcome.selection.primary.scores == [[1.0, 0.5], [2.0, 1.0]]
