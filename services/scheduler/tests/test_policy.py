"""A policy that can't work is refused before the first request, in words that help."""

import pytest

from pointsman_core.config import ConfigError, SchedulingPolicy, load
from pointsman_core.plugins import Key, PluginError
from pointsman_plugins.plugin import Params
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Producer, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.configuration import check, compile_policies
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.plugins import SCORERS, registries


@pytest.mark.requirement("S2-6", "S2-27")
@pytest.mark.parametrize(
    ("settings", "place", "words"),
    [
        (
            {"scorers": ["quue"]},
            "profiles.default.scorers.0.use",
            "unknown scorer type 'quue'; did you mean 'queue'? known: active-r",
        ),
        (
            {"filters": ["helthy"]},
            "profiles.default.filters.0.use",
            "unknown filter type 'helthy'; did you mean 'healthy'?",
        ),
        (
            {"picker": "max-scor"},
            "profiles.default.picker.use",
            "unknown picker type 'max-scor'; did you mean 'max-score'?",
        ),
        ({"handler": "singel"}, "handler.use", "unknown profile handler type 'singel'; did you mean 'single'?"),
        (
            {"scorers": ["session", {"use": "queue", "treshold": 1}]},
            "profiles.default.scorers.1.treshold",
            "unknown parameter 'treshold'; known: none",
        ),
        (
            {"scorers": [{"use": "load-aware", "treshold": 1}]},
            "profiles.default.scorers.0.treshold",
            "unknown parameter 'treshold'; did you mean 'threshold'?",
        ),
        (
            {"scorers": ["queue", "queue"]},
            "profiles.default.scorers",
            "scorer 'queue' is configured twice; give one of them another `name`",
        ),
        ({"profiles": {"a": {}, "b": {}}}, "handler", "works with one scheduling profile; there are 2: a, b"),
        ({"handler": "disaggregated"}, "handler", "needs a scheduling profile 'decode'; there are: default"),
        ({"handler": "shadow"}, "handler", "needs a second scheduling profile"),
        ({"handler": {"use": "header-named"}}, "handler.default", "default: Field required"),
        (
            {"handler": {"use": "disaggregated", "prefill_when": "prefx"}, "deciders": ["prefix"]},
            "handler",
            "unknown plugin 'prefx'; did you mean 'prefix'?",
        ),
        (
            {"filters": [{"use": "label-selector"}]},
            "profiles.default.filters.0",
            "give `match_labels` or `match_expressions`",
        ),
        (
            {"profiles": {"p": {"filters": [{"use": "role", "role": "decoder"}]}}},
            "profiles.p.filters.0.role",
            "role: Input should be 'prefill', 'decode' or 'encode'",
        ),
        (
            {"pre-request": ["destination"]},
            "pre-request.0.use",
            "unknown pre request type 'destination'; did you mean 'destination-header'?",
        ),
        ({"flow_control": {"detector": "x"}}, "flow_control.detector.use", "unknown saturation detector type 'x'"),
        ({"flow_control": {"bands": {2: {"ordering": "x"}}}}, "flow_control.bands.2.ordering.use", "type 'x'"),
        ({"observers": ["x"]}, "observers.0.use", "unknown response observer type 'x'"),
    ],
)
def test_a_mistake_is_named_with_its_correction(settings: dict[str, object], place: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(load({"scheduling": {"chat": settings}}))
    ((path, problem),) = refused.value.problems
    assert words in problem
    assert path == f"scheduling.chat.{place}".removesuffix(".")


def test_a_policy_without_profiles_is_refused() -> None:
    with pytest.raises(ValueError, match="profiles"):
        SchedulingPolicy.model_validate({"profiles": {}})


THERMAL = Key("gpu-temperature", float)


class Cool(Scorer):
    """Needs an attribute without a producer, unless one is installed with it."""

    type_name = "cool"
    consumes = (THERMAL,)

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        return candidates.kv_usage * request.get(THERMAL)


class Thermometer(Producer):
    """Produces it."""

    type_name = "thermometer"
    produces = (THERMAL,)

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        request.put(THERMAL, 0.5)


@pytest.mark.requirement("S2-38")
def test_an_input_without_a_producer_is_refused_and_a_producer_that_is_installed_is_added() -> None:
    scorers = Registry(Scorer, (*SCORERS, Cool))
    settings = SchedulingPolicy.model_validate({"scorers": ["cool"]})
    with pytest.raises(PluginError, match="'cool' needs the attribute 'gpu-temperature': no configured plugin"):
        compile_policy("chat", settings, registries()._replace(scorers=scorers))
    installed = registries()._replace(scorers=scorers, producers=Registry(Producer, (Thermometer,)))
    policy = compile_policy("chat", settings, installed)
    assert [producer.name for producer in policy.producers] == ["thermometer"]


def test_two_plugin_types_of_the_same_name_are_refused() -> None:
    with pytest.raises(PluginError, match="scorer type 'queue' is taken"):
        Registry(Scorer, (*SCORERS, type("Twin", (Cool,), {"type_name": "queue"})))


def test_equal_policies_have_equal_hashes_and_others_have_others() -> None:
    def hash_of(**settings: object) -> str:
        return compile_policy("chat", SchedulingPolicy.model_validate(settings), registries()).hash

    assert hash_of() == hash_of()
    assert hash_of(scorers=["queue"]) == hash_of(profiles={"default": {"scorers": ["queue"]}})
    assert hash_of(scorers=["queue"]) != hash_of(scorers=[{"use": "queue", "weight": 2}])


@pytest.mark.requirement("S2-42")
def test_a_plugins_state_outlives_a_revision_that_does_not_change_it() -> None:
    book = PolicyBook(registries())
    first = book.compile(load({"pools": {"llama": {}}, "scheduling": {"default": {"scorers": ["latency", "queue"]}}}))
    second = book.compile(load({"pools": {"llama": {}}, "scheduling": {"default": {"scorers": ["latency"]}}}))
    third = book.compile(
        load(
            {
                "pools": {"llama": {}},
                "scheduling": {
                    "default": {
                        "scorers": ["latency"],
                        "producers": [{"use": "latency-prediction", "trusted_after": 5}],
                    }
                },
            }
        )
    )
    assert first["llama"].producers[0] is second["llama"].producers[0]
    assert third["llama"].producers[0] is not second["llama"].producers[0]


@pytest.mark.requirement("S1-13", "S1-47")
def test_pools_do_not_share_what_plugins_learn() -> None:
    book = PolicyBook(registries())
    config = load({"pools": {"a": {}, "b": {}}, "scheduling": {"default": {"scorers": ["latency"]}}})
    compiled = book.compile(config)
    assert compiled["a"].producers[0] is not compiled["b"].producers[0]


def test_a_policy_that_no_pool_uses_must_be_right_as_well() -> None:
    book = PolicyBook(registries())
    with pytest.raises(ConfigError, match=r"scheduling\.spare"):
        compile_policies(
            book, load({"pools": {"a": {}}, "scheduling": {"default": {}, "spare": {"scorers": ["nope"]}}})
        )


def test_every_parameter_of_every_plugin_has_words() -> None:
    for registry in registries():
        for plugin in registry.types.values():
            assert plugin.__doc__, plugin
            assert issubclass(plugin.params_type, Params)
