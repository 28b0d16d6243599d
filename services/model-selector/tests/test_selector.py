"""A selector as a whole: filter, score, pick, and what comes of it."""

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.timing import TIMES
from pointsman_core.config import ConfigError, load
from pointsman_core.plugins import PluginError
from pointsman_core.refusal import Refusal
from pointsman_model_selector.configuration import check
from pointsman_model_selector.domain.selector import (
    Builtin,
    CompiledSelector,
    Selected,
    clamped,
    compile_selectors,
    registries,
)
from pointsman_model_selector.plugins import BUILTIN
from pointsman_plugins.plugin import Params
from pointsman_plugins.selecting import Candidate, ModelPicker, ModelQuestion, ModelScorer, ModelStates
from pointsman_testing import builders

THREE: Final[dict[str, object]] = {
    "pools": {"big": {"models": ["llama-70b"]}, "small": {"models": ["llama-8b", "mistral-7b"]}},
    "models": {
        # At 1,000 prompt and 1,000 output tokens these cost 0.7, 0.1 and 0.1 dollars per thousand requests.
        "llama-70b": {"pool": "big", "cost": {"input": 0.2, "output": 0.5}},
        "llama-8b": {"pool": "small", "cost": {"input": 0.05, "output": 0.05}},
        "mistral-7b": {"pool": "small", "cost": {"input": 0.05, "output": 0.05}},
    },
}

RULED: Final = {"use": "attribute", "attribute": "plan"}


class TableParams(Params):
    scores: dict[str, float]


class Table(ModelScorer[TableParams]):
    """Scores from a table."""

    type_name = "table"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        return [self.params.scores.get(candidate.name, 0.0) for candidate in candidates]


class Turns(ModelScorer):
    """Prefers the model that it preferred least often: an instance with a memory."""

    type_name = "turns"

    def setup(self) -> None:
        self._taken = Counter[str]()

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        least = min(candidates, key=lambda candidate: self._taken[candidate.name])
        self._taken[least.name] += 1
        return [float(candidate is least) for candidate in candidates]


TYPES: Final = registries(BUILTIN._replace(scorers=(*BUILTIN.scorers, Table, Turns)))


def selector(how: dict[str, object], **sections: object) -> CompiledSelector:
    return compile_selectors(load(THREE | sections | {"selectors": {"s": how}}), TYPES)["s"]


def request(model: str = "auto", request_id: str = "r", **facts: object) -> Journey:
    fields: dict[str, object] = {"api": "chat.completions", "prompt_tokens": 1000, "max_output_tokens": 1000}
    return builders.journey(
        "model-selector", model=model, request_id=request_id, request=read_fields(RequestFacts, fields | facts)
    )


def statistics(model: str, **changes: object) -> ModelStatistics:
    fields: dict[str, object] = {"model": model, "source": "c", "sequence": 1, "at_ms": 1, "output_tokens": 1000.0}
    return read_fields(ModelStatistics, fields | changes)


def select(compiled: CompiledSelector, journey: Journey, *known: ModelStatistics) -> Selected:
    standing = ModelStates()
    for one in known:
        standing.model_changed(one)
    return compiled.select_model(ModelQuestion(journey, standing, now_s=0.0, now_ms=1000))


@pytest.mark.requirement("S0-42", "S0-75")
def test_the_reference_example_picks_the_cheap_model_that_is_not_rate_limited() -> None:
    """Mistral-7b is rate-limited, cost scores llama-8b 0.9 and llama-70b 0.3, llama-8b is picked."""
    compiled = selector(
        {"filters": ["rate-limited"], "scorers": [{"use": "cost", "worst": 0.001}], "picker": "max-score"}
    )
    known = [statistics(name) for name in ("llama-70b", "llama-8b")]
    selected = select(compiled, request(), *known, statistics("mistral-7b", limited_until_ms=2000))
    assert selected.model.name == "llama-8b"
    assert selected.total == pytest.approx(0.9)
    assert selected.out == {"mistral-7b": "rate-limited: its provider asked for a pause"}
    other = compiled.select_model(
        ModelQuestion(request(), ModelStates(), 0.0, 1000)
    )  # nobody is rate-limited: both cheap models tie, the dear one still loses
    assert other.model.name != "llama-70b"


@pytest.mark.requirement("S0-43")
def test_weighted_scores_add_up_and_the_highest_sum_wins() -> None:
    one = {"use": "table", "name": "one", "weight": 2, "scores": {"llama-8b": 0.5, "llama-70b": 0.1}}
    two = {"use": "table", "name": "two", "weight": 1, "scores": {"llama-8b": 0.1, "llama-70b": 1.0}}
    selected = select(selector({"scorers": [one, two]}), request())
    assert (selected.model.name, selected.total) == ("llama-70b", pytest.approx(1.2))


@pytest.mark.requirement("S0-44")
@given(st.floats())
def test_a_score_is_clamped_to_zero_and_one(score: float) -> None:
    assert 0.0 <= clamped(score) <= 1.0
    assert clamped(score) == (0.0 if math.isnan(score) else sorted((0.0, score, 1.0))[1])


def test_out_of_range_scores_do_not_outweigh_others() -> None:
    wild = {"use": "table", "name": "wild", "scores": {"llama-8b": 1e9, "llama-70b": -5.0, "mistral-7b": math.nan}}
    calm = {"use": "table", "name": "calm", "weight": 2, "scores": {"llama-70b": 1.0}}
    assert select(selector({"scorers": [wild, calm]}), request()).model.name == "llama-70b"


@pytest.mark.requirement("S0-45")
def test_when_all_models_are_filtered_out_the_client_gets_429_with_the_reasons() -> None:
    compiled = selector({"filters": ["capable", "rate-limited"]})
    with pytest.raises(Refusal) as caught:
        select(compiled, request(features=("vision",)))
    assert (caught.value.status, caught.value.code) == (429, "no_model_available")
    assert caught.value.message == "The selector's filters removed every model: capable: lacks vision (3)."
    assert caught.value.retry_after_s is None


def test_a_pause_that_ends_tells_when_to_come_back() -> None:
    compiled = selector({"filters": ["rate-limited"]})
    paused = [
        statistics(name, limited_until_ms=until)
        for name, until in (("llama-70b", 9000), ("llama-8b", 3500), ("mistral-7b", 60_000))
    ]
    with pytest.raises(Refusal) as caught:
        select(compiled, request(), *paused)
    assert caught.value.retry_after_s == pytest.approx(2.5)


def test_an_empty_catalogue_is_503() -> None:
    compiled = compile_selectors(load({"selectors": {"s": {}}}), TYPES)["s"]
    with pytest.raises(Refusal) as caught:
        select(compiled, request())
    assert (caught.value.status, caught.value.code) == (503, "no_models")
    assert caught.value.retry_after_s is not None


def test_a_selector_chooses_among_its_own_models_only() -> None:
    compiled = selector({"models": ["mistral-7b"]})
    assert select(compiled, request()).model.name == "mistral-7b"


@pytest.mark.requirement("S0-47")
def test_selectors_share_nothing() -> None:
    config = THREE | {
        "selectors": {
            "cheap": {"scorers": ["cost"]},
            "good": {"scorers": [{"use": "table", "scores": {"llama-70b": 1.0}}]},
        }
    }
    compiled = compile_selectors(load(config), TYPES)
    assert select(compiled["cheap"], request()).model.name != "llama-70b"
    assert select(compiled["good"], request()).model.name == "llama-70b"


@pytest.mark.requirement("S0-17")
def test_profiles_that_name_one_selector_share_its_memory_and_others_have_their_own() -> None:
    """Journeys of any profile are decided by the instance that their itinerary names."""
    turns = {"models": ["llama-70b", "llama-8b"], "scorers": ["turns"]}
    profiles = {
        "morning": {"request": ["model-selector/shared", "scheduler"]},
        "evening": {"request": ["guard", "model-selector/shared", "scheduler"]},
        "apart": {"request": ["model-selector/own", "scheduler"]},
    }
    config = load(THREE | {"selectors": {"shared": turns, "own": turns}, "profiles": profiles, "profile-picker": RULED})
    compiled = compile_selectors(config, TYPES)

    def chosen(profile: str) -> str:
        [use] = [use for use in config.profiles[profile].request if use.service == "model-selector"]
        journey = replace(request(), profile=profile)
        return select(compiled[use.policy or ""], journey).model.name

    assert [chosen("morning"), chosen("evening"), chosen("morning")] == ["llama-70b", "llama-8b", "llama-70b"]
    assert chosen("apart") == "llama-70b"


def test_fallbacks_are_the_next_best_in_order() -> None:
    scores = {"use": "table", "scores": {"llama-8b": 0.9, "llama-70b": 0.5, "mistral-7b": 0.1}}
    selected = select(selector({"scorers": [scores], "fallbacks": 2}), request())
    assert [model.name for model in (selected.model, *selected.fallbacks)] == ["llama-8b", "llama-70b", "mistral-7b"]
    assert select(selector({"scorers": [scores]}), request()).fallbacks == ()


@pytest.mark.requirement("S0-48", "S0-49", "S0-73", "S0-74")
def test_a_header_may_change_how_models_are_ranked() -> None:
    """One selector, ranked by quality, latency or cost."""
    compiled = selector(
        {
            "models": ["llama-70b", "llama-8b"],
            "rankings": {
                "cost": {"scorers": ["cost"]},
                "quality": {"scorers": [{"use": "table", "scores": {"llama-70b": 1.0}}]},
                "latency": {"scorers": ["latency"]},
            },
            "choose": {
                "use": "by-header",
                "header": "X-Priority",
                "rankings": {"high": "quality", "interactive": "latency"},
                "default": "cost",
            },
        }
    )
    slow, fast = statistics("llama-8b", ttft_ms=900.0, itl_ms=30.0), statistics("llama-70b", ttft_ms=100.0, itl_ms=5.0)

    def chosen(headers: dict[str, str]) -> tuple[str, str]:
        selected = select(compiled, request(headers=headers), slow, fast)
        return selected.ranking, selected.model.name

    assert chosen({}) == ("cost", "llama-8b")
    assert chosen({"x-priority": "batch"}) == ("cost", "llama-8b")
    assert chosen({"x-priority": "high"}) == ("quality", "llama-70b")
    assert chosen({"x-priority": "interactive"}) == ("latency", "llama-70b")


def test_a_request_sent_again_is_decided_alike_by_every_replica() -> None:
    how: dict[str, object] = {"picker": "random"}
    for number in range(20):
        journey = request(request_id=f"r{number}")
        assert len({select(selector(how), journey).model.name for _ in range(3)}) == 1


def test_requests_are_not_all_decided_alike() -> None:
    compiled = selector({"picker": "max-score"})
    assert len({select(compiled, request(request_id=f"r{number}")).model.name for number in range(60)}) == 3


def test_the_note_names_the_choice_its_scores_and_the_filtered_models() -> None:
    scores = {"use": "table", "scores": {"llama-8b": 0.9}}
    selected = select(
        selector({"filters": ["rate-limited"], "scorers": [scores]}), request(), statistics("mistral-7b", remaining=0)
    )
    assert selected.note == "default: llama-8b (0.90); mistral-7b out (rate-limited: its quota is used up)"


@pytest.mark.requirement("S0-55")
def test_each_plugin_can_be_timed() -> None:
    timed: Counter[tuple[str, str]] = Counter()

    def timing(kind: str, name: str) -> object:
        return lambda: timed.update([(kind, name)])

    compiled = selector({"filters": ["capable"], "scorers": ["cost", "quality"], "picker": "max-score"})
    compiled.select_model(ModelQuestion(request(), ModelStates(), 0.0, 0), timing)  # pyright: ignore[reportArgumentType]
    assert timed == {
        ("filter", "capable"): 1,
        ("scorer", "cost"): 1,
        ("scorer", "quality"): 1,
        ("picker", "max-score"): 1,
    }


@pytest.mark.requirement("S0-33")
def test_a_selector_of_which_nothing_is_said_chooses_among_all_models_by_its_defaults() -> None:
    selected = select(selector({}), request())
    assert (selected.ranking, selected.fallbacks, selected.out) == ("default", (), {})
    assert {select(selector({}), request(request_id=str(number))).model.name for number in range(40)} == {
        "llama-70b",
        "llama-8b",
        "mistral-7b",
    }


@pytest.mark.requirement("S0-33")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"filters": ["capabel"]},
            "selectors.s.rankings.default.filters.0.use: unknown model filter type 'capabel'; did you mean 'capable'?",
        ),
        ({"scorers": [{"use": "cost", "wurst": 1}]}, "unknown parameter 'wurst'; did you mean 'worst'?"),
        ({"scorers": [{"use": "cost", "worst": 0}]}, "greater than 0"),
        (
            {"rankings": {"a": {"scorers": ["cost", {"use": "latency", "of": "x"}]}}},
            "selectors.s.rankings.a.scorers.1.of: model scorer 'latency' (latency): of: Input should be 'first-token'",
        ),
        ({"picker": "min-score"}, "selectors.s.rankings.default.picker.use: unknown model picker type 'min-score'"),
        ({"choose": {"use": "single", "ranking": "x"}}, "selectors.s.choose: unknown ranking 'x'; known: default"),
        ({"choose": {"use": "by-header", "header": "a", "rankings": {"b": "c"}}}, "unknown ranking 'c'"),
        ({"filters": ["capable", "capable"]}, "'capable' is configured twice"),
    ],
)
def test_a_wrong_selector_is_refused_by_name_with_what_would_be_right(how: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(load(THREE | {"selectors": {"s": how}}))
    assert str(caught.value).startswith("selectors.s")
    assert words in str(caught.value)


class Forgetful(ModelScorer):
    """Scores one model too few."""

    type_name = "forgetful"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        return [1.0] * (len(candidates) - 1)


class Last(ModelPicker):
    """Prefers the last."""

    type_name = "last"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        return list(reversed(range(len(totals))))


def test_plugins_of_others_take_part() -> None:
    types = registries(Builtin((), (Forgetful,), (Last,), BUILTIN.choosers))
    config = load(THREE | {"selectors": {"s": {"picker": "last"}, "t": {"scorers": ["forgetful"], "picker": "last"}}})
    compiled = compile_selectors(config, types)
    assert select(compiled["s"], request()).model.name == "mistral-7b"
    with pytest.raises(RuntimeError, match="'forgetful' gave 2 scores for 3 models"):
        select(compiled["t"], request())
    with pytest.raises(PluginError, match="unknown model picker type"):
        compile_selectors(load({"selectors": {"s": {}}}), types)


@pytest.mark.requirement("S3-8")
def test_a_selector_chooses_and_falls_back_to_allowed_models_alone_whatever_its_filters() -> None:
    compiled = selector({"scorers": ["quality"], "fallbacks": 3})
    selected = select(compiled, request(attributes={"identity": {"models": ["llama-8b"]}}))
    assert (selected.model.name, selected.fallbacks) == ("llama-8b", ())
    assert set(selected.out.values()) == {"allowed: not allowed for this identity"}
    with pytest.raises(Refusal) as caught:
        select(compiled, request(attributes={"identity": {"models": ["other"]}}))
    assert (caught.value.status, caught.value.code) == (403, "model_not_allowed")


@pytest.mark.requirement("S0-45")
def test_the_error_for_an_identity_whose_only_model_is_filtered_out_says_so_and_not_that_it_may_use_none() -> None:
    compiled = selector({"filters": ["capable"]})
    with pytest.raises(Refusal) as caught:
        select(compiled, request(attributes={"identity": {"models": ["llama-8b"]}}, features=("vision",)))
    assert (caught.value.status, caught.value.code) == (429, "no_model_available")
    assert "capable: lacks vision" in caught.value.message


@pytest.mark.parametrize(
    ("scorer", "now_s", "old"),
    [
        ("saturation", TIMES.snapshot_old_s, ("small",)),
        ("saturation", TIMES.snapshot_old_s + 0.1, ("big", "small")),
        ("cost", 99.0, ()),
    ],
)
def test_a_choice_says_whose_state_was_old_when_it_went_by_it(scorer: str, now_s: float, old: tuple[str, ...]) -> None:
    standing = ModelStates()
    standing.pool_changed(PoolSnapshot(pool="big", source="c", sequence=1, at_ms=1, saturation=0.5), 0.0)
    compiled = selector({"scorers": [scorer]})
    assert compiled.select_model(ModelQuestion(request(), standing, now_s, 1000)).old_pools == old


class Recorder(ModelPicker):
    """Draws numbers of every kind, and keeps them."""

    type_name = "recorder"
    drawn: ClassVar[list[tuple[float, int, list[int]]]] = []

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        self.drawn.append(draws(random))
        return list(range(len(totals)))


def draws(random: Random) -> tuple[float, int, list[int]]:
    positions = list(range(5))
    random.shuffle(positions)
    return random.random(), random.getrandbits(40), positions


def test_a_picker_draws_the_numbers_of_the_request_however_many_came_before() -> None:
    types = registries(Builtin((), (), (Recorder,), BUILTIN.choosers))
    compiled = compile_selectors(
        load(THREE | {"selectors": {"s": {"scorers": list[str](), "picker": "recorder"}}}), types
    )
    Recorder.drawn.clear()
    asked = [request(request_id=f"request-{number}") for number in (1, 2, 1)]
    for each in asked:
        select(compiled["s"], each)
    assert Recorder.drawn == [draws(Random(zlib.crc32(each.request_id.encode()))) for each in asked]


CASCADE: Final[dict[str, object]] = {"models": ["mistral-7b", "llama-8b", "llama-70b"], "cascade": {"low_logprob": -3}}


def test_a_cascade_asks_its_models_in_their_order_and_goes_on_after_those_that_were_asked() -> None:
    compiled = selector(CASCADE)
    asked: tuple[str, ...] = ()
    for name, rest in (("mistral-7b", ("llama-8b", "llama-70b")), ("llama-8b", ("llama-70b",)), ("llama-70b", ())):
        selected = select(compiled, request(escalated=asked))
        assert selected.model.name == name
        assert tuple([each.name for each in selected.fallbacks]) == rest
        assert (None if selected.step is None else (selected.step.model, selected.step.rest)) == (
            (name, rest) if rest else None
        )
        asked = (*asked, name)
    with pytest.raises(Refusal, match="no further model"):
        select(compiled, request(escalated=asked))
    assert select(compiled, request()).note == "default: mistral-7b first, then llama-8b, llama-70b"


def test_a_model_that_a_filter_removes_is_no_part_of_the_cascade() -> None:
    compiled = selector(CASCADE | {"filters": ["rate-limited"]})
    limited = [statistics(name, limited_until_ms=2000) for name in ("mistral-7b", "llama-70b")]
    selected = select(compiled, request(), *limited)
    assert (selected.model.name, selected.step) == ("llama-8b", None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": ["llama-8b"]}, "a cascade needs at least two `models`"),
        ({"models": []}, "a cascade needs at least two `models`"),
        ({"scorers": ["cost"]}, "leave out `scorers` and `joint`"),
        ({"fallbacks": 1}, "leave out `fallbacks`"),
        ({"cascade": {"check": "nobody"}}, "'nobody' is no stage"),
        ({"cascade": {"check": {"stage": "guard", "mode": "after"}}}, "a cascade's check sees whole answers"),
        ({"cascade": {"check": "guard", "hold_tokens": 3}}, "leave out `hold_tokens` or `check`"),
        ({"cascade": {"mean_logprob": 0.1}}, "less than or equal to 0"),
    ],
)
def test_a_cascade_that_could_not_work_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(THREE | {"selectors": {"s": CASCADE | changes}})
