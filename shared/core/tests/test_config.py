"""The configuration file is checked as a whole, and its errors name the place and what would be right."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.target import Target
from pointsman_core.config import ConfigError, load
from pointsman_core.plugins import PluginError
from pointsman_core.units import seconds, size

SAMPLE = Path(__file__).resolve().parents[3] / "pointsman.yaml"


def problems(document: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(document)
    return str(caught.value)


def _in_cluster(**where: object) -> dict[str, object]:
    return {"pools": {"a": {"discovery": "kubernetes", "kubernetes": where}}}


def test_the_sample_file_loads() -> None:
    config = load(yaml.safe_load(SAMPLE.read_text(encoding="utf-8")))
    assert config.find_target("sql-lora") == Target(
        model="sql-lora", pool="llama-8b", lora="sql-lora", base="llama-3.1-8b"
    )
    assert config.profiles["auto"].request[0].service == "model-selector"
    assert config.profiles["auto"].request[0].policy == "cheap"


def test_without_profiles_there_is_one_that_schedules() -> None:
    config = load({})
    assert [use.service for use in config.profiles["standard"].request] == ["scheduler"]
    assert [scorer.use for scorer in config.scheduling["default"].profiles["default"].scorers]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"pool": {}}, "unknown key 'pool'; did you mean 'pools'?"),
        ({"pools": {"a": {"sheduling": "x"}}}, "pools.a: unknown key 'sheduling'; did you mean 'scheduling'?"),
        ({"pools": {"a": {"scheduling": "fast"}}}, "pools.a.scheduling: unknown scheduling policy 'fast'"),
        ({"pools": {"a": {"discovery": "static"}}}, "`discovery: static` needs `engines`"),
        (
            {"pools": {"a": {"discovery": "static", "engines": ["http://e:80", {"url": "http://e:80/x"}]}}},
            "two engines are called 'e:80'; give each a `name` of its own",
        ),
        ({"pools": {"a": {"discovery": "static", "engines": ["e:80"]}}}, "the URL must begin with http:// or https://"),
        ({"pools": {"a": {"discovery": "kubernetes"}}}, "`discovery: kubernetes` needs `kubernetes`"),
        ({"pools": {"a": {"file": "/e.yaml"}}}, "`file` can't be used with `discovery: agents`"),
        (_in_cluster(), "either by `inference_pool` or by `selector` and `ports`"),
        (
            _in_cluster(inference_pool="p", selector={"a": "b"}),
            "either by `inference_pool` or by `selector` and `ports`",
        ),
        (_in_cluster(selector={"a": "b"}), "`selector` and `ports` must be given together"),
        (_in_cluster(selector={"a": "b"}, ports=[80, 80]), "a port twice"),
        (_in_cluster(inference_pool="p", health="/live"), "`health` is only for `engine: opaque`"),
        (_in_cluster(inference_pool="p", engine="opaque", metrics_port=1), "leave `metrics_port` out"),
        (_in_cluster(inference_pol="p"), "did you mean 'inference_pool'"),
        ({"objectives": {"vip": 1001}}, "less than or equal to 1000"),
        ({"models": {"m": {"pool": "x"}}}, "models.m.pool: unknown pool 'x'; known: none"),
        ({"models": {"m": {}}}, "models.m: a model has either a `pool` or a `provider`"),
        ({"providers": {"p": {"kind": "openai", "base_url": "u", "credential": "sk-1"}}}, "secrets don't belong"),
        ({"providers": {"p": {"kind": "openai", "base_url": "ftp://far"}}}, "must begin with https://"),
        ({"providers": {"p": {"kind": "openai", "base_url": "http://far/v1"}}}, "allow `plaintext: true`"),
        ({"providers": {"p": {"kind": "openai", "base_url": "https://u:p@far"}}}, "a secret doesn't belong"),
        ({"providers": {"p": {"kind": "openai", "headers": {"Authorization": "x"}}}}, "a secret doesn't belong"),
        ({"providers": {"p": {"kind": "openai", "base_url": "https://169.254.169.254"}}}, "are never asked"),
        ({"profiles": {"": {}}}, "a name must not be empty or blank"),
        ({"pools": {" ": {}}}, "a name must not be empty or blank"),
        ({"pools": {"p": {"models": ["m", "  "]}}}, "a name must not be empty or blank"),
        ({"providers": {"p": {"kind": "openai", "headers": {"Host": "x"}}}}, "the edge writes this header itself"),
        ({"providers": {"p": {"kind": "openai", "headers": {"a": "x\r\ny: z"}}}}, "not a header"),
        (
            {"providers": {"p": {"kind": "openai"}}, "models": {"m": {"provider": "p", "fallbacks": ["n"]}}},
            "models.m.fallbacks: unknown model 'n'",
        ),
        ({"profiles": {"a": {"request": ["schedulr"]}}}, "unknown stage 'schedulr'; did you mean 'scheduler'?"),
        ({"profiles": {"a": {"request": ["model-selector", "scheduler"]}}}, "unknown selector ''"),
        ({"profiles": {"a": {"request": ["guard"]}}}, "the last stage must be `scheduler`"),
        pytest.param(
            {"profiles": {"a": {}, "b": {}}},
            "several profiles need a picker",
            marks=pytest.mark.requirement("S0-34"),
        ),
        ({"profiles": {}}, "at least one profile is needed"),
        (
            {"profiles": {"a": {"extends": "b"}}},
            "profiles.a: unknown key 'extends'; known: processors, request, response, resume, resume_attempts, slo, "
            "static",
        ),
        ({"scheduling": {"default": {"filters": ["a"], "profiles": {}}}}, "write either `profiles` or `filters`"),
        ({"edge": {"max_body": "4 XB"}}, "edge.max_body: '4 XB' is not a size"),
        ({"models": {"m": {"pool": "p", "apis": ["chat"]}}}, "models.m.apis.0: Input should be 'chat.completions'"),
        ({"models": {"m": {"pool": "p", "features": ["foo"]}}}, "models.m.features.0: Input should be 'tools'"),
        (
            {"pools": {"p": {}}, "models": {"m": {"pool": "p", "fallbacks": ["m"]}}},
            "models.m.fallbacks: 'm' can't be its own fallback",
        ),
        (
            {"preprocessing": ["api-keys"], "edge": {"static_skips": ["api-key"]}},
            "edge.static_skips.0: unknown preprocessing plugin 'api-key'; did you mean 'api-keys'?",
        ),
        ({"pools": {"a": {"models": ["x", "y"], "loras": ["z"]}}}, "pools.a.loras: unknown model 'z'; known: x, y"),
        ({"providers": {"p": {"kind": "openai", "credential": "env:"}}}, "providers.p.credential.0: write a reference"),
        ({"pools": {"a": {"discovery": "static", "engines": ["http://"]}}}, "'http://': the URL names no host"),
        ({"pools": {"a": {"discovery": "static", "engines": ["http://e:99999"]}}}, "Port out of range"),
        ({"selectors": {"s": {"scorers": [{"use": "a", "weight": -3}]}}}, "weight: Input should be greater than or"),
        ({"selectors": {"s": {"scorers": [{"use": "a", "weight": float("inf")}]}}}, "Input should be a finite"),
        (
            {"scheduling": {"s": {"scorers": [{"use": "a", "weight": float("nan")}]}}},
            "weight: Input should be a finite",
        ),
        ({"edge": {"max_body": 0}}, "edge.max_body: Input should be greater than 0"),
        ({"edge": {"request_timeout": "0s"}}, "edge.request_timeout: Input should be greater than 0"),
        ({"edge": {"request_timeout": float("inf")}}, "edge.request_timeout: Input should be a finite number"),
        ({"edge": {"hop_budget": "0s"}}, "edge.hop_budget: Input should be greater than 0"),
        (
            {"profiles": {"a": {"request": [{"stage": "scheduler", "timeout": "0s"}]}}},
            "profiles.a.request.0.timeout: Input should be greater than 0",
        ),
        ({"stages": {"a": {"timeout": "0s"}}}, "stages.a.timeout: Input should be greater than 0"),
        ({"preprocessing": [{"use": "a", "timeout": "0s"}]}, "preprocessing.0.timeout: Input should be greater than 0"),
        ({"caches": {"a": {"ttl": "0s"}}}, "caches.a.ttl: Input should be greater than 0"),
        ({"caches": {"a": {"max_bytes": 0, "max_answer": 0}}}, "caches.a.max_bytes: Input should be greater than 0"),
        ({"edge": {"hop_budget": "soon"}}, "edge.hop_budget: 'soon' is not a duration"),
        ({"profile-picker": {"use": "rules", "default": "x"}}, "profile-picker.default: unknown profile 'x'"),
        ({"profile-picker": {"on_undecided": "default"}}, "`on_undecided: default` needs a `default` profile"),
        ({"selectors": {"a": {"picker": "random", "rankings": {}}}}, "write either `rankings` or `picker`"),
        ({"selectors": {"a": {"rankings": {"b": {}, "c": {}}}}}, "several rankings need a chooser"),
        ([1], "Input should be a section of keys"),
        ({"pools": 3}, "pools: Input should be a section of keys"),
        ({"pools": {"a": {"models": True}}}, "pools.a.models: Input should be a list"),
        ({"profile-picker": {"use": 3}}, "profile-picker.use: Input should be a text: put the number in quotes"),
        (
            {"pools": {"a": {"models": [True]}}},
            "pools.a.models.0: Input should be a text: put yes, no, true and false in quotes",
        ),
        ({"edge": 1}, "edge: Input should be a section of keys"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_would_be_right(document: object, text: str) -> None:
    assert text in problems(document)


def test_the_allowed_values_of_a_key_fit_one_line() -> None:
    text = problems({"profiles": {"a": {"response": [{"stage": "guard", "mode": "windoww"}]}}})
    may_be = "'enforce', 'shadow', 'off', 'buffer', 'window' or 'after'"
    assert text == f"profiles.a.response.0.mode: Input should be {may_be}"


def test_a_list_whose_only_entry_is_wrong_is_not_called_empty() -> None:
    entry: dict[str, str] = {}
    assert problems({"rewrites": [{"match": [entry], "to": "a"}]}) == "rewrites.0.match.0: Input should be a text"
    assert problems({"rewrites": [{"match": (), "to": "a"}]}) == "rewrites.0.match: at least 1 entry is needed"


def test_all_mistakes_are_named_at_once() -> None:
    text = problems({"models": {"m": {"pool": "x"}}, "profiles": {"a": {"request": ["guard"]}}})
    assert "models.m.pool" in text
    assert "profiles.a.request" in text


@pytest.mark.requirement("S0-62")
def test_a_pipeline_is_preprocessing_profiles_and_postprocessing_and_nothing_is_nested_deeper() -> None:
    config = load(
        {
            "preprocessing": ["request-id"],
            "profiles": {"p": {"request": ["scheduler"], "response": ["audit"]}},
            "postprocessing": ["audit"],
            "stages": {"audit": {"mode": "after"}},
        }
    )
    assert [use.service for use in (*config.profiles["p"].response, *config.postprocessing)] == ["audit", "audit"]
    for level in ("preprocessing", "postprocessing", "profiles"):
        with pytest.raises(ConfigError, match=level):
            load({"profiles": {"p": {level: []}}})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"postprocessing": ["guad"]}, r"postprocessing\.0.*guad"),
        ({"postprocessing": ["scheduler"]}, "doesn't review responses"),
        ({"profiles": {"p": {"response": [{"stage": "mine", "mode": "window"}]}}}, "needs `content: text`"),
        ({"profiles": {"p": {"request": [{"stage": "mine", "mode": "after"}, "scheduler"]}}}, "on the way back"),
        ({"stages": {"mine": {"mode": "window", "content": "text", "overlap": 512}}}, "must be less than `window`"),
    ],
)
def test_a_stage_that_can_not_be_asked_about_answers_so_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load({"stages": {"mine": {"mode": "after"}}, **changes})


def test_a_third_party_stage_is_declared_and_then_usable() -> None:
    config = load(
        {"stages": {"translate": {"timeout": "250ms"}}, "profiles": {"a": {"request": ["translate", "scheduler"]}}}
    )
    assert config.stages["translate"].timeout == 0.25


def test_the_policy_hash_depends_on_meaning_only() -> None:
    one, other = (
        {"edge": {"hop_budget": "600ms", "max_body": "4MiB"}},
        {"edge": {"max_body": 4194304, "hop_budget": 0.6}},
    )
    assert load(one).policy_hash() == load(other).policy_hash() != load({"edge": {"hop_budget": "1s"}}).policy_hash()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_any_document_loads_or_is_refused_with_words(document: object) -> None:
    try:
        outcome = [type(load(document)).__name__]
    except ConfigError as error:
        outcome = [text for _, text in error.problems]
    assert outcome
    assert all(outcome)


@pytest.mark.parametrize(
    ("text", "value"), [("250ms", 0.25), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("1 d", 86400.0)]
)
def test_durations_read_as_seconds(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("8MiB", 8388608), ("64 KB", 64000), ("1gib", 1073741824), ("5", 5), ("5B", 5)]
)
def test_sizes_read_as_bytes(text: str, value: int) -> None:
    assert size(text) == value


def test_an_unknown_name_is_reported_with_its_own_place() -> None:
    document = {
        "pools": {"a": {"models": ["m"], "scheduling": "fast"}},
        "profiles": {"standard": {"request": ["gard", "scheduler"]}},
    }
    with pytest.raises(ConfigError) as caught:
        load(document)
    assert [path for path, _ in caught.value.problems] == ["pools.a.scheduling", "profiles.standard.request.0"]
    assert caught.value.problems[1][1].startswith("unknown stage 'gard'; did you mean 'guard'?")


@pytest.mark.requirement("S0-38")
def test_there_is_one_picker() -> None:
    assert "profile-picker" in problems({"profile-picker": [{"use": "single"}, {"use": "rules"}]})


@pytest.mark.requirement("S0-21")
def test_profiles_do_not_extend_each_other() -> None:
    assert "unknown key 'extends'" in problems({"profiles": {"a": {"extends": "b"}}})


def test_a_plugins_mistake_is_placed_in_its_section() -> None:
    error = ConfigError.from_section("preprocessing", PluginError("unknown", ("use",)).within(2))
    assert error.problems == [("preprocessing.2.use", "unknown")]


@pytest.mark.parametrize(
    "name", ["scheduler", "preprocessor", "frontend", "worker-agent", "auditor", "my.stage", "a b"]
)
def test_a_custom_stage_needs_a_name_that_is_free_and_fits_a_subject(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.{re.escape(name)}"):
        load({"stages": {name: {}}})
