"""The changes of a journey whose profile is picked."""

from typing import Final

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from pointsman_contracts.journey import AnswerUse, Journey, RequestFacts, Stage, Target
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_core.config import Config, load
from pointsman_core.plugins import PluginError
from pointsman_core.refusal import Refusal
from pointsman_plugins.picking import Choice, PickError, PoolStates, ProfilePicker
from pointsman_plugins.registry import Registry
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.domain.route import Routing
from pointsman_testing import builders

POOLS: Final = {"a": {"models": ["base", "tuned"], "loras": ["tuned"]}}


def snapshot(pool: str, saturation: float, *models: str, loras: tuple[str, ...] = ()) -> PoolSnapshot:
    worker = WorkerView(worker="w", url="http://w", models=models, loras=loras)
    return PoolSnapshot(
        pool=pool, source="c", sequence=1, at_ms=1, workers=(worker,), saturation=saturation, models=models
    )


def target(config: dict[str, object], model: str, pools: PoolStates | None = None) -> Target:
    return compile_routing(load(config)).find_serving(model, pools or PoolStates()).target


@pytest.mark.requirement("S0-14", "S0-16")
def test_the_itinerary_carries_policy_timeout_and_what_happens_on_an_error() -> None:
    config: dict[str, object] = {
        "selectors": {"cheap": {}},
        "stages": {"translate": {"timeout": "250ms", "on_error": "allow"}},
        "profiles": {
            "p": {
                "request": [
                    {"stage": "guard", "on_error": "allow", "timeout": "1.5s"},
                    "model-selector/cheap",
                    "translate",
                    {"stage": "translate", "timeout": "1s", "on_error": "deny"},
                    "scheduler",
                ],
                "response": [
                    "guard",
                    {"stage": "translate", "mode": "window", "content": "text", "window": 100, "overlap": 10},
                ],
            }
        },
    }
    route = compile_routing(load(config)).pick_profile(builders.journey("profile-picker"), PoolStates(), 0.0).route
    assert route.request == (
        Stage(service="guard", timeout_ms=1500, on_error="allow"),
        Stage(service="model-selector", policy="cheap"),
        Stage(service="translate", timeout_ms=250, on_error="allow"),
        Stage(service="translate", timeout_ms=1000, on_error="deny"),
        Stage(service="scheduler"),
    )
    assert route.response == (
        Stage(
            service="guard",
            timeout_ms=1000,
            answer=AnswerUse(mode="window", content="text", overlap=128, sentences=True),
        ),
        Stage(
            service="translate",
            timeout_ms=250,
            on_error="allow",
            answer=AnswerUse(mode="window", content="text", window=100, overlap=10),
        ),
    )
    assert route.selects


def test_a_configured_model_names_pool_provider_and_adapter() -> None:
    config: dict[str, object] = {
        "pools": POOLS,
        "providers": {"openai": {"kind": "openai", "base_url": "https://api.openai.com/v1"}},
        "models": {"large": {"provider": "openai", "served_as": "gpt-5"}, "mine": {"pool": "a", "served_as": "tuned"}},
    }
    assert target(config, "base") == Target(model="base", pool="a")
    assert target(config, "tuned") == Target(model="tuned", pool="a", lora="tuned", base="base")
    assert target(config, "large") == Target(model="gpt-5", provider="openai")
    assert target(config, "mine") == Target(model="tuned", pool="a", lora="tuned", base="base")


def test_a_model_that_only_live_workers_name_goes_to_the_least_saturated_pool() -> None:
    pools = PoolStates()
    pools.update(snapshot("a", 0.9, "live", "adapter", loras=("adapter",)), 0.0)
    pools.update(snapshot("b", 0.1, "live"), 0.0)
    config: dict[str, object] = {"pools": {"a": {}, "b": {}}}
    assert target(config, "live", pools) == Target(model="live", pool="b")
    assert target(config, "adapter", pools) == Target(model="adapter", pool="a", lora="adapter")


@pytest.mark.requirement("DEPLOY-4")
def test_a_model_that_a_closed_pools_list_lacks_is_not_served_although_its_engines_report_it() -> None:
    """An adapter that is taken out of its configuration ends there, even while engines have it loaded."""
    pools = PoolStates()
    pools.update(snapshot("a", 0.1, "base", "tuned", loras=("tuned",)), 0.0)
    with pytest.raises(Refusal, match=r"'tuned' does not exist.*Known models: base\."):
        target({"pools": {"a": {"models": ["base"], "only_listed": True}}}, "tuned", pools)
    assert target({"pools": {"a": {"models": ["base"]}}}, "tuned", pools).lora == "tuned"
    assert target({"pools": {"a": {}}}, "tuned", pools).lora == "tuned"


def test_a_model_is_not_called_unknown_before_the_pools_engines_have_named_theirs() -> None:
    config: dict[str, object] = {"pools": {"a": {"models": ["base"]}, "b": {}}}
    pools = PoolStates()
    with pytest.raises(Refusal) as caught:
        target(config, "live", pools)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "models_unknown", 1.0)
    assert "'b'" in caught.value.message
    pools.update(snapshot("b", 0.0), 0.0)
    with pytest.raises(Refusal, match="does not exist"):
        target(config, "live", pools)


def test_an_unknown_model_is_not_found_and_the_known_ones_are_named() -> None:
    pools = PoolStates()
    pools.update(snapshot("a", 0.1, "live"), 0.0)
    with pytest.raises(Refusal) as caught:
        target({"pools": POOLS}, "bass", pools)
    refused = caught.value
    assert (refused.status, refused.code, refused.param) == (404, "model_not_found", "model")
    assert refused.message == ("The model 'bass' does not exist. Did you mean 'base'? Known models: base, tuned, live.")


def test_a_thousand_known_models_are_not_all_named() -> None:
    models = [f"model-{number}" for number in range(1000)]
    with pytest.raises(Refusal, match="and 950 more"):
        target({"pools": {"a": {"models": models}}}, "x")


def test_the_name_of_an_unknown_model_is_repeated_as_far_as_names_go() -> None:
    with pytest.raises(Refusal, match=f"The model '{'x' * 100}' does not exist"):
        target({"pools": POOLS}, "x" * 10_000)


class Astray(ProfilePicker):
    """Chooses what doesn't exist."""

    type_name = "astray"

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        return Choice("nowhere", "by mistake")


class ByLength(ProfilePicker):
    """Short prompts to the emptiest pool's profile: more than an expression could say."""

    type_name = "by-length"
    reads_pools = True

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        if journey.request.prompt_tokens > 1000:
            return None
        emptiest = min(("a", "b"), key=lambda name: pools.get(name).facts["saturation"])
        return Choice(f"on-{emptiest}", "emptiest")


@pytest.mark.requirement("S0-22", "S0-26")
def test_a_third_party_picker_decides_in_python_by_request_and_pools() -> None:
    profiles: dict[str, object] = {name: {"request": ["scheduler"]} for name in ("on-a", "on-b", "long")}
    config = load({"profiles": profiles, "profile-picker": {"use": "by-length", "default": "long"}})
    routing = Routing(config, Registry(ProfilePicker, (ByLength,)))
    pools = PoolStates()
    pools.update(snapshot("a", 0.9), 0.0)
    pools.update(snapshot("b", 0.1), 0.0)
    assert routing.pick_profile(builders.journey("profile-picker"), pools, 0.0).profile == "on-b"
    pools.update(snapshot("a", 0.0), 0.0)
    assert routing.pick_profile(builders.journey("profile-picker"), pools, 0.0).profile == "on-a"
    long = RequestFacts(api="completions", prompt_tokens=1001)
    assert routing.pick_profile(builders.journey("profile-picker", request=long), pools, 0.0).profile == "long"


class Unbindable(ProfilePicker):
    """Refuses every configuration."""

    type_name = "unbindable"

    def bind(self, config: Config) -> None:
        raise PluginError("not with me")

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        return None


@pytest.mark.requirement("S0-36")
def test_a_plugin_that_chooses_an_unknown_profile_is_an_error() -> None:
    registry = Registry(ProfilePicker, (Astray, Unbindable))
    routing = Routing(load({"profile-picker": {"use": "astray"}}), registry)
    with pytest.raises(PickError, match="astray: it chose the profile 'nowhere', which doesn't exist"):
        routing.pick_profile(builders.journey("profile-picker"), PoolStates(), 0.0)


def test_a_picker_may_refuse_a_configuration() -> None:
    registry = Registry(ProfilePicker, (Astray, Unbindable))
    with pytest.raises(PluginError, match="not with me"):
        Routing(load({"profile-picker": {"use": "unbindable"}}), registry)


@pytest.mark.requirement("S0-18")
def test_a_profile_is_data_that_each_request_carries_along() -> None:
    """Nothing is started or kept for a profile: two revisions with other chains serve side by side."""
    config = load({"pools": POOLS, "profiles": {"p": {"request": ["guard", "scheduler"], "response": ["guard"]}}})
    profile = config.profiles["p"]
    assert type(profile).model_validate(profile.model_dump()) == profile
    with pytest.raises(ValidationError, match="frozen"):
        profile.request = ()  # pyright: ignore[reportAttributeAccessIssue] - what is tried here
    before = compile_routing(config)
    after = compile_routing(load({"pools": POOLS, "profiles": {"p": {"request": ["scheduler"]}}}))
    journey = builders.journey("profile-picker", model="base")
    for routing, chain in ((before, ["guard", "scheduler"]), (after, ["scheduler"]), (before, ["guard", "scheduler"])):
        picked = routing.pick_profile(journey, PoolStates(), 0.0)
        carried = Journey.decode(replace(journey, itinerary=picked.route.request).encode())
        assert [stage.service for stage in carried.itinerary] == chain


@pytest.mark.requirement("S0-70")
def test_a_configured_model_names_its_fallbacks() -> None:
    document = {
        "pools": {"a": {"models": ["small"]}},
        "providers": {"openai": {"kind": "openai"}},
        "models": {"large": {"provider": "openai", "fallbacks": ["small", "other"]}, "other": {"provider": "openai"}},
    }
    routing = compile_routing(load(document))
    assert [
        (target.model, target.pool, target.provider)
        for target in routing.find_serving("large", PoolStates()).alternatives
    ] == [
        ("small", "a", None),
        ("other", None, "openai"),
    ]
    assert routing.find_serving("small", PoolStates()).alternatives == ()


@pytest.mark.requirement("S1-20")
def test_a_rewritten_model_is_settled_and_the_client_knows_only_the_name_it_asked_for() -> None:
    routing = compile_routing(load({"pools": POOLS, "rewrites": [{"match": "prod", "to": "base"}]}))
    to = routing.find_serving("base", PoolStates(), "prod").target
    assert to.model == "base"
    with pytest.raises(Refusal) as caught:
        routing.find_serving("gone", PoolStates(), "asked")
    assert "'asked'" in caught.value.message
    assert "gone" not in caught.value.message
    assert "prod" in caught.value.message
