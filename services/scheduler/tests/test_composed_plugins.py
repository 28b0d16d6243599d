"""Filters and scorers that call others of their list."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.config import SchedulingPolicy
from pointsman_core.plugins import PluginError
from pointsman_scheduler.domain.policy import Instances, compile_policy
from pointsman_scheduler.plugins import registries
from pointsman_testing.scheduler_bench import Bench, explained

NAMES: Final = ("a", "b", "c", "d")
LABELS: Final = {"a": "one", "b": "two", "c": "three", "d": "four"}


def keeping(name: str, workers: frozenset[str]) -> dict[str, object]:
    """A filter that keeps these workers, by their labels."""
    values = [LABELS[worker] for worker in sorted(workers)] or ["none"]
    expression = {"key": "place", "operator": "In", "values": values}
    return {"use": "label-selector", "name": name, "match_expressions": [expression]}


def bench(*filters: object, deciders: tuple[object, ...] = (), scorers: tuple[object, ...] = ("queue",)) -> Bench:
    made = Bench({"deciders": list(deciders), "filters": list(filters), "scorers": list(scorers)})
    for name in NAMES:
        made.join(name, labels={"place": LABELS[name]})
    return made


sets = st.frozensets(st.sampled_from(NAMES))


@pytest.mark.requirement("S0-56")
@given(sets, sets)
def test_any_of_keeps_the_workers_of_either_filter_and_all_of_those_of_both(
    first: frozenset[str], second: frozenset[str]
) -> None:
    for use, expected in (("any-of", first | second), ("all-of", first & second)):
        made = bench(keeping("x", first), keeping("y", second), {"use": use, "of": ["x", "y"]})
        if expected:
            assert made.survivors() == set(expected)
        else:
            assert made.refused().refusal.status == 503


@pytest.mark.requirement("S0-56")
@given(sets, sets)
def test_fallback_of_keeps_what_the_first_filter_keeps_that_keeps_any(
    first: frozenset[str], second: frozenset[str]
) -> None:
    made = bench(keeping("x", first), keeping("y", second), {"use": "fallback-of", "of": ["x", "y"]})
    expected = first or second
    if not expected:
        assert made.refused().refusal.status == 503
        return
    assert made.survivors() == set(expected)
    passed_over = "fallback-of: no worker passes x" in made.decide().reasons
    assert passed_over is (not first)


@pytest.mark.requirement("S0-56")
def test_a_filter_by_condition_is_asked_for_the_requests_that_its_decider_wants() -> None:
    made = bench(
        keeping("small", frozenset("ab")),
        keeping("large", frozenset("cd")),
        {"use": "by-condition", "when": "prompt-length", "then": "large", "otherwise": "small"},
        deciders=({"use": "prompt-length", "at_least": 1000},),
    )
    assert made.survivors(made.request(prompt_tokens=999)) == {"a", "b"}
    assert made.survivors(made.request(prompt_tokens=1000)) == {"c", "d"}


def test_a_header_decides_by_its_value_and_without_values_by_being_there() -> None:
    condition = {"use": "by-condition", "when": "header", "then": "x"}
    named = ({"use": "header", "header": "X-Tier", "values": ["gold"]},)
    made = bench(keeping("x", frozenset("a")), condition, deciders=named)
    assert made.survivors(made.request(headers={"x-tier": "gold"})) == {"a"}
    assert made.survivors(made.request(headers={"x-tier": "tin"})) == set(NAMES)
    made = bench(keeping("x", frozenset("a")), condition, deciders=({"use": "header", "header": "X-Tier"},))
    assert made.survivors(made.request(headers={"x-tier": "tin"})) == {"a"}
    assert made.survivors(made.request(headers={"x-tier": " "})) == set(NAMES)


@given(sets)
def test_a_dry_run_removes_no_worker_and_the_decision_says_how_many_it_would(kept: frozenset[str]) -> None:
    made = bench(keeping("x", kept), {"use": "dry-run", "of": "x"})
    assert made.survivors() == set(NAMES)
    said = f"x would remove {len(NAMES) - len(kept)} of {len(NAMES)}" in made.decide().reasons
    assert said is (len(kept) < len(NAMES))


def test_the_reason_for_a_removed_worker_is_that_of_the_filter_that_removed_it() -> None:
    made = bench("healthy", keeping("x", frozenset("ab")), {"use": "all-of", "of": ["healthy", "x"]})
    made.hear("a", sequence=2, state="draining")
    removed = explained(made.decide())[0][0].candidates.filtered
    assert removed["a"] == "all-of: draining"
    assert set(removed) == {"a", "c", "d"}


@pytest.mark.requirement("S0-56")
@given(st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_a_scorer_of_others_takes_the_least_or_greatest_score_and_theirs_are_not_added(use: list[float]) -> None:
    totals: dict[str, dict[str, float]] = {}
    for composed in (None, "least-of", "greatest-of"):
        called = [{"use": "queue", "weight": 7}, {"use": "kv-utilization", "weight": 3}]
        scorers = (*called, {"use": composed, "of": ["queue", "kv-utilization"]}) if composed else ("queue",)
        made = bench(scorers=scorers)
        for name, waiting, kv in (("a", 4, use[0]), ("b", 1, use[1])):
            made.hear(name, sequence=2, waiting=waiting, kv_usage=kv)
        totals[composed or "queue"] = made.scores()
    for name in NAMES:
        assert 0.0 <= totals["least-of"][name] <= totals["queue"][name] <= totals["greatest-of"][name] <= 1.0


def test_a_scorer_by_condition_scores_by_the_one_that_its_decider_wants() -> None:
    made = bench(
        deciders=({"use": "prompt-length", "at_least": 1000},),
        scorers=("queue", {"use": "score-by-condition", "when": "prompt-length", "then": "queue"}),
    )
    made.hear("a", sequence=2, waiting=5)
    assert made.scores(made.request(prompt_tokens=10)) == dict.fromkeys(NAMES, 1.0)
    scores = made.scores(made.request(prompt_tokens=1000))
    assert scores["a"] < scores["b"]


@pytest.mark.requirement("S0-56")
@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (
            [{"use": "any-of", "name": "p", "of": ["q", "healthy"]}, {"use": "any-of", "name": "q", "of": ["p", "p"]}],
            "cycle of references: p -> q -> p",
        ),
        ([{"use": "dry-run", "of": "helthy"}], "'dry-run': unknown plugin 'helthy'; did you mean 'healthy'?"),
        (
            [{"use": "by-condition", "when": "healthy", "then": "healthy"}],
            "'by-condition' refers to 'healthy', which is a healthy, not a Decider",
        ),
    ],
)
def test_a_wrong_reference_is_refused_with_its_path(filters: list[object], words: str) -> None:
    settings = SchedulingPolicy.model_validate({"filters": ["healthy", *filters], "scorers": ["queue"]})
    with pytest.raises(PluginError) as error:
        compile_policy("default", settings, registries())
    assert words in str(error.value)


def test_a_called_plugin_keeps_its_state_when_another_part_of_the_policy_changes() -> None:
    def settings(weight: int) -> SchedulingPolicy:
        filters = [keeping("x", frozenset("a")), {"use": "dry-run", "of": "x"}]
        return SchedulingPolicy.model_validate({"filters": filters, "scorers": [{"use": "queue", "weight": weight}]})

    kept = Instances()
    first, second = (compile_policy("default", settings(weight), registries(), kept) for weight in (1, 2))
    profiles = first.profiles["default"], second.profiles["default"]
    assert profiles[0].filters[0] is profiles[1].filters[0]
    assert profiles[0].called == profiles[1].called
    assert profiles[1].filters[0].referred() == profiles[1].called
