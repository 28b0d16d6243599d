"""Each filter, scorer and picker by itself."""

from collections import Counter
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import load
from pointsman_core.plugins import PluginError, Spec
from pointsman_model_selector.domain.candidate import candidates_of
from pointsman_model_selector.domain.selector import registries
from pointsman_model_selector.plugins import BUILTIN
from pointsman_model_selector.plugins.ranking import MaxScoreModel, UniformRandom, WeightedRandomModel
from pointsman_plugins.plugin import Params
from pointsman_plugins.registry import Registry
from pointsman_plugins.selecting import Candidate, ModelFilter, ModelPicker, ModelQuestion, ModelStates
from pointsman_testing import builders

TYPES: Final = registries(BUILTIN)
CONFIG: Final = load(
    {
        "pools": {"own": {"models": ["small", "seeing"]}},
        "providers": {"far": {"kind": "openai", "base_url": "https://far.example/v1"}},
        "models": {
            "small": {"pool": "own", "cost": {"input": 1, "output": 2}, "quality": 0.4, "context": 4096},
            "seeing": {"pool": "own", "features": ["vision", "tools"], "groups": ["eyes"], "quality": 0.6},
            "dear": {"provider": "far", "cost": {"input": 4, "output": 8}, "quality": 0.9, "groups": ["eyes", "best"]},
            "vectors": {"provider": "far", "apis": ["embeddings"]},
        },
    }
)
MODELS: Final = {candidate.name: candidate for candidate in candidates_of(CONFIG, ())}


def request(model: str = "auto", /, **facts: object) -> Journey:
    fields: dict[str, object] = {"api": "chat.completions", "prompt_tokens": 1000}
    return builders.journey("model-selector", model=model, request=read_fields(RequestFacts, fields | facts))


def statistics(model: str, **changes: object) -> ModelStatistics:
    return read_fields(ModelStatistics, {"model": model, "source": "c", "sequence": 1, "at_ms": 1} | changes)


def snapshot(saturation: float = 0.0, models: tuple[str, ...] = ("small", "seeing"), at_ms: int = 1) -> PoolSnapshot:
    return PoolSnapshot(pool="own", source="c", sequence=at_ms, at_ms=at_ms, saturation=saturation, models=models)


def question(journey: Journey, *known: ModelStatistics | PoolSnapshot) -> ModelQuestion:
    standing = ModelStates()
    for signal in known:
        if isinstance(signal, PoolSnapshot):
            standing.pool_changed(signal, 0.0)
        else:
            standing.model_changed(signal)
    return ModelQuestion(journey, standing, now_s=0.0, now_ms=1000)


def kept(name: str, asked: ModelQuestion, **params: object) -> list[str]:
    plugin = TYPES.filters.build([Spec(name, name, params)])[0]
    return [model.name for model in MODELS.values() if plugin.objection(asked, model) is None]


def scored(name: str, asked: ModelQuestion, *models: str, **params: object) -> list[float]:
    plugin = TYPES.scorers.build([Spec(name, name, params)])[0]
    return plugin.scores(asked, [MODELS[model] for model in models])


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ["small", "seeing", "dear"]),
        ({"api": "embeddings"}, ["vectors"]),
        ({"features": ("tools",)}, ["small", "seeing", "dear"]),
        ({"features": ("vision",)}, ["seeing"]),
        ({"features": ("vision", "json")}, []),
        ({"features": ("json",)}, ["small", "dear"]),
        ({"prompt_tokens": 4097}, ["seeing", "dear"]),
        ({"prompt_tokens": 4000, "max_output_tokens": 97}, ["seeing", "dear"]),
        ({"prompt_tokens": 4000, "max_output_tokens": 96}, ["small", "seeing", "dear"]),
    ],
)
def test_capable_keeps_models_that_can_do_what_the_request_needs(facts: dict[str, object], expected: list[str]) -> None:
    assert kept("capable", question(request("auto", **facts))) == expected


@pytest.mark.requirement("S0-54")
def test_healthy_takes_out_models_that_no_live_worker_serves() -> None:
    assert kept("healthy", question(request(), snapshot(models=("seeing",)))) == ["seeing", "dear", "vectors"]
    assert kept("healthy", question(request())) == list(MODELS), "nobody told anything: all stay"


def test_healthy_takes_out_models_whose_requests_mostly_fail() -> None:
    failing = statistics("dear", requests=20, errors=11)
    assert "dear" not in kept("healthy", question(request(), failing))
    assert "dear" in kept("healthy", question(request(), failing), max_error_rate=0.6)
    assert "dear" in kept("healthy", question(request(), failing), min_requests=21)


@pytest.mark.requirement("S0-54")
@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (None, ["small", "seeing", "dear", "vectors"]),
        ([], []),
        (["small"], ["small"]),
        (["s*"], ["small", "seeing"]),
        (["group:best", "vectors"], ["dear", "vectors"]),
        ("dear", ["dear"]),
    ],
)
def test_allowed_keeps_what_the_identity_may_use(models: object, expected: list[str]) -> None:
    identity = {"tenant": "t"} if models is None else {"models": models}
    assert kept("allowed", question(request(attributes={"identity": identity}))) == expected


def test_a_request_without_identity_may_use_all_models() -> None:
    assert kept("allowed", question(request())) == list(MODELS)


@pytest.mark.requirement("S0-54")
def test_rate_limited_takes_out_models_until_the_pause_is_over() -> None:
    pausing = statistics("dear", limited_until_ms=1001)
    assert "dear" not in kept("rate-limited", question(request(), pausing))
    assert "dear" in kept("rate-limited", question(request(), statistics("dear", limited_until_ms=1000)))


def test_rate_limited_leaves_a_part_of_the_quota_alone() -> None:
    low = question(request(), statistics("dear", remaining=0.1))
    assert "dear" in kept("rate-limited", low)
    assert "dear" not in kept("rate-limited", low, min_remaining=0.2)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("auto", ["small", "seeing", "dear", "vectors"]),
        ("auto/eyes", ["seeing", "dear"]),
        ("auto/nobody", []),
        ("dear", ["dear"]),
        ("automatic", []),
    ],
)
def test_group_reads_the_model_that_was_asked_for(model: str, expected: list[str]) -> None:
    assert kept("group", question(request(model))) == expected


def test_group_goes_by_the_configured_keyword() -> None:
    assert kept("group", question(request("any/best")), keyword="any") == ["dear"]


@pytest.mark.requirement("S0-54")
def test_cost_counts_prompt_and_expected_output_at_the_models_prices() -> None:
    asked = question(request(max_output_tokens=500))
    assert scored("cost", asked, "small", "dear") == [1.0, pytest.approx(0.25)]
    # 1,000 x 1 + 256 x 2 and 1,000 x 4 + 256 x 8 millionths of a dollar.
    assert scored("cost", asked, "small", "dear", worst=0.01) == [pytest.approx(0.8488), pytest.approx(0.3952)]


def test_cost_expects_answers_as_long_as_they_were_but_within_the_limit() -> None:
    wordy = statistics("small", output_tokens=5000.0)
    assert scored("cost", question(request(), wordy), "small", worst=0.1) == [pytest.approx(1 - 0.011 / 0.1)]
    limited = question(request(max_output_tokens=100), wordy)
    assert scored("cost", limited, "small", worst=0.1) == [pytest.approx(1 - 0.0012 / 0.1)]


def test_cost_counts_every_answer_and_the_prompt_once() -> None:
    asked = question(request(max_output_tokens=100, answers=4))
    assert scored("cost", asked, "small", worst=0.1) == [pytest.approx(1 - 0.0018 / 0.1)]


def test_a_model_without_requests_is_expected_to_answer_like_the_others() -> None:
    short = statistics("dear", output_tokens=5.0)
    # Of 1,000 prompt tokens and 5 of the answer, not 256 against 5.
    assert scored("cost", question(request(), short), "small", "dear") == [1.0, pytest.approx(1010 / 4040)]


def test_a_model_that_costs_nothing_is_best() -> None:
    assert scored("cost", question(request()), "seeing", "small") == [1.0, 0.0]


@pytest.mark.requirement("S0-54")
def test_latency_is_measured_against_the_fastest() -> None:
    known = statistics("small", ttft_ms=100.0, itl_ms=10.0), statistics("dear", ttft_ms=50.0, itl_ms=40.0)
    asked = question(request(max_output_tokens=10), *known)
    assert scored("latency", asked, "small", "dear", "seeing") == [1.0, pytest.approx(200 / 450), 0.5]
    assert scored("latency", asked, "small", "dear", of="first-token") == [0.5, 1.0]
    assert scored("latency", asked, "seeing", unknown=0.9) == [0.9]


@pytest.mark.requirement("S0-54")
def test_quality_is_what_the_configuration_says() -> None:
    assert scored("quality", question(request()), "small", "dear") == [0.4, 0.9]


@pytest.mark.requirement("S0-54")
def test_saturation_prefers_room_in_pools_and_quota_at_providers() -> None:
    asked = question(request(), snapshot(0.7), statistics("dear", remaining=0.25))
    assert scored("saturation", asked, "small", "dear", "vectors") == [pytest.approx(0.3), 0.25, 1.0]


def test_a_session_stays_with_its_model_and_moves_only_when_that_goes() -> None:
    names = ("small", "seeing", "dear")
    for number in range(50):
        asked = question(request(session=f"s{number}"))
        scores = scored("session-affinity", asked, *names)
        assert sorted(scores) == [0.0, 0.0, 1.0]
        home = names[scores.index(1.0)]
        others = tuple(name for name in names if name != home)
        gone = others[number % 2]
        left = tuple(name for name in names if name != gone)
        assert scored("session-affinity", asked, *left)[left.index(home)] == 1.0
    assert scored("session-affinity", question(request()), *names) == [0.0, 0.0, 0.0]


def test_sessions_spread_over_models() -> None:
    homes = Counter(
        scored("session-affinity", question(request(session=f"s{number}")), "small", "seeing", "dear").index(1.0)
        for number in range(600)
    )
    assert min(homes.values()) > 130


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=8),
    st.integers(),
    st.sampled_from([MaxScoreModel, WeightedRandomModel, UniformRandom]),
)
def test_every_picker_orders_all_models_once(totals: list[float], seed: int, picker: type[ModelPicker]) -> None:
    plugin = TYPES.pickers.build([Spec(picker.type_name, "p", {})])[0]
    assert sorted(plugin.order(totals, Random(seed))) == list(range(len(totals)))


def choices(picker: str, *totals: float) -> Counter[int]:
    plugin = TYPES.pickers.build([Spec(picker, "p", {})])[0]
    random = Random(1)
    return Counter(plugin.order(totals, random)[0] for _ in range(2000))


@pytest.mark.requirement("S0-46")
def test_max_score_takes_the_highest_and_deals_ties() -> None:
    assert choices("max-score", 0.1, 0.9, 0.3) == {1: 2000}
    ties = choices("max-score", 0.9, 0.1, 0.9)
    assert set(ties) == {0, 2}
    assert min(ties.values()) > 850


@pytest.mark.requirement("S0-46")
def test_weighted_random_goes_by_the_totals() -> None:
    """0.9 is nine times likelier than 0.1."""
    drawn = choices("weighted-random", 0.9, 0.1, 0.0)
    assert set(drawn) == {0, 1}
    assert 1720 < drawn[0] < 1880
    assert set(choices("weighted-random", 0.0, 0.0)) == {0, 1}


@pytest.mark.parametrize("scale", [1e-3, 1e-9, 1e-300])
def test_weighted_random_goes_by_small_totals_as_by_large_ones(scale: float) -> None:
    drawn = choices("weighted-random", 0.1 * scale, 0.9 * scale, 0.0)
    assert set(drawn) == {0, 1}
    assert 1720 < drawn[1] < 1880


def test_random_ignores_the_totals() -> None:
    drawn = choices("random", 1.0, 0.0)
    assert min(drawn.values()) > 850


@pytest.mark.requirement("S0-52")
def test_a_candidate_has_an_id_what_is_configured_and_what_is_measured() -> None:
    asked = question(request(), snapshot(0.7), statistics("small", ttft_ms=80.0, requests=10, errors=1))
    small = MODELS["small"]
    assert (small.name, small.target.pool, small.input_cost, small.quality) == ("small", "own", 1.0, 0.4)
    measured, pool = asked.standing.statistics(small.name), asked.standing.pool("own")
    assert measured is not None
    assert pool is not None
    assert (measured.ttft_ms, measured.errors, pool.saturation) == (80.0, 1, 0.7)


def test_a_model_that_only_a_pool_lists_is_a_candidate_with_default_traits() -> None:
    config = load({"pools": {"p": {"models": ["base", "tuned"], "loras": ["tuned"]}}})
    base, tuned = candidates_of(config, ())
    assert (base.name, base.target.pool, base.target.lora) == ("base", "p", None)
    assert isinstance(tuned, Candidate)
    assert tuned.target.lora == "tuned"
    assert [candidate.name for candidate in candidates_of(config, ("tuned",))] == ["tuned"]


def test_signals_that_come_late_change_nothing() -> None:
    standing = ModelStates()
    standing.pool_changed(snapshot(0.5, at_ms=5), 0.0)
    standing.pool_changed(snapshot(0.9, at_ms=4), 0.0)
    standing.model_changed(statistics("small", at_ms=5, requests=5))
    standing.model_changed(statistics("small", at_ms=4, requests=4))
    pool, model = standing.pool("own"), standing.statistics("small")
    assert pool is not None
    assert model is not None
    assert (pool.saturation, model.requests) == (0.5, 5)


def test_a_filter_of_others_keeps_the_models_that_one_of_them_keeps() -> None:
    group, capable, any_of = TYPES.filters.build(
        [
            Spec("group", "group", {}),
            Spec("capable", "capable", {}),
            Spec("any-of", "any-of", {"of": ["group", "capable"]}),
        ]
    )
    assert [each.called_by_another for each in (group, capable, any_of)] == [True, True, False]
    asked = question(request("auto/best", features=["vision"]))
    for model in MODELS.values():
        objections = [each.objection(asked, model) for each in (group, capable)]
        if None in objections:
            assert any_of.objection(asked, model) is None
        else:
            assert any_of.objection(asked, model) == "; ".join(map(str, objections))


@pytest.mark.requirement("COMPOSE-1")
def test_a_timed_plugin_does_as_the_one_that_it_calls_and_tells_its_time() -> None:
    most = {"most": 60.0}
    inner, timed = TYPES.filters.build([Spec("group", "g", {}), Spec("timed", "t", {"of": "g", **most})])
    asked = question(request("auto/eyes"))
    for candidate in MODELS.values():
        assert timed.objection(asked, candidate) == inner.objection(asked, candidate)
    scorer, called = TYPES.scorers.build([Spec("timed", "t", {"of": "cost", **most}), Spec("cost", "cost", {})])
    candidates = list(MODELS.values())
    for each in (called, scorer):
        each.bind(candidates)
    assert scorer.scores(asked, candidates) == called.scores(asked, candidates)
    assert (scorer.remark(asked) or "").startswith("cost: ")
    assert called.called_by_another


@pytest.mark.requirement("COMPOSE-1")
def test_a_timed_plugin_that_was_too_slow_decides_nothing_for_a_while() -> None:
    never = {"most": 1e-9, "times": 1, "pause": 60.0}
    _, timed = TYPES.filters.build([Spec("group", "g", {}), Spec("timed", "t", {"of": "g", **never})])
    asked = question(request("auto/eyes"))
    objections = [timed.objection(asked, MODELS["small"]) for _ in range(2)]
    assert objections[0] is not None
    assert objections[1] is None
    _, scorer = TYPES.scorers.build([Spec("quality", "quality", {}), Spec("timed", "t", {"of": "quality", **never})])
    scores = [scorer.scores(asked, [MODELS["small"], MODELS["dear"]]) for _ in range(2)]
    assert scores[0][0] < scores[0][1]
    assert scores[1] == [0.0, 0.0]
    assert (scorer.remark(asked) or "").startswith("quality: left out: took ")


@pytest.mark.requirement("COMPOSE-1")
def test_plugins_that_call_each_other_in_a_circle_are_refused_with_the_path() -> None:
    with pytest.raises(PluginError, match="cycle of references: a -> b -> a"):
        TYPES.filters.build([Spec("timed", "a", {"of": "b", "most": 1}), Spec("any-of", "b", {"of": ("a", "a")})])


class KeptParams(Params):
    names: frozenset[str] = frozenset()


class Keeps(ModelFilter[KeptParams]):
    """Keeps models by name."""

    type_name = "keeps"

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        return None if candidate.name in self.params.names else f"{self.name} drops it"


NAMED = st.frozensets(st.sampled_from(sorted(MODELS)))
FILTERS = Registry(ModelFilter, (Keeps, *BUILTIN.filters))


@pytest.mark.requirement("COMPOSE-2")
@given(NAMED, NAMED, st.booleans())
def test_filters_of_others_keep_what_sets_would(first: frozenset[str], second: frozenset[str], header: bool) -> None:
    parts: list[Spec] = [Spec("keeps", "a", {"names": first}), Spec("keeps", "b", {"names": second})]
    asked = question(request("auto", headers={"x-fast": "1"} if header else {}))

    def kept(use: str, **params: object) -> frozenset[str]:
        composed = FILTERS.build([*parts, Spec(use, use, params)])[-1]
        models = list(MODELS.values())
        told = composed.objections(asked, models)
        return frozenset(model.name for model, objection in zip(models, told, strict=True) if objection is None)

    assert kept("any-of", of=["a", "b"]) == first | second
    assert kept("all-of", of=["a", "b"]) == first & second
    assert kept("fallback-of", of=["a", "b"]) == (first or second)
    assert kept("timed", of="a", most=60.0) == first
    assert kept("by-condition", header="X-Fast", then="a", otherwise="b") == (first if header else second)
    assert kept("by-condition", header="X-Fast", values=["2"], then="a") == frozenset(MODELS)
    nested = [*parts, Spec("fallback-of", "f", {"of": ["a", "b"]}), Spec("any-of", "n", {"of": ["f", "f"]})]
    models = list(MODELS.values())
    told = FILTERS.build(nested)[-1].objections(asked, models)
    assert {each.name for each, why in zip(models, told, strict=True) if why is None} == (first or second)


@pytest.mark.requirement("COMPOSE-2")
def test_scorers_of_others_give_the_lowest_the_highest_or_that_of_a_condition() -> None:
    models = list(MODELS.values())
    asked = question(request("auto"))
    long: dict[str, object] = {"prompt_tokens": 10**6, "then": "quality", "otherwise": "cost"}

    def scores(use: str, **params: object) -> list[float]:
        specs = [Spec("quality", "quality", {}), Spec("cost", "cost", {}), Spec(use, "composed", params)]
        built = TYPES.scorers.build(specs)
        for each in built:
            each.bind(models)
        found["quality"], found["cost"] = (each.scores(asked, models) for each in built[:2])
        return built[-1].scores(asked, models)

    found: dict[str, list[float]] = {}
    assert scores("least-of", of=["quality", "cost"]) == list(map(min, found["quality"], found["cost"]))
    assert scores("greatest-of", of=["quality", "cost"]) == list(map(max, found["quality"], found["cost"]))
    assert scores("score-by-condition", **long) == found["cost"]
    assert scores("score-by-condition", **{**long, "prompt_tokens": 1}) == found["quality"]
    with pytest.raises(PluginError, match="write `header`, `prompt_tokens` or both"):
        scores("score-by-condition", then="cost")
