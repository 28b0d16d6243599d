"""A model that the identity may not use isn't settled, by whatever name it was asked for, and isn't told of."""

import pytest
from pydantic import JsonValue

from pointsman_core.config import load
from pointsman_core.permission import allowed_models, may_use
from pointsman_core.refusal import Refusal
from pointsman_plugins.picking import PoolStates
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.domain.route import Routing

CONFIG: dict[str, object] = {
    "pools": {"p": {"models": ["small", "large", "tuned"]}},
    "models": {
        "small": {"pool": "p", "groups": ["own"], "fallbacks": ["large", "tuned"]},
        "large": {"pool": "p"},
        "tuned": {"pool": "p", "groups": ["own"]},
    },
    "rewrites": [{"match": "gpt-4o", "to": "large"}],
}


@pytest.fixture
def routing() -> Routing:
    return compile_routing(load(CONFIG))


@pytest.mark.requirement("S3-8")
@pytest.mark.parametrize("allowed", [["small"], ["sm*"], ["group:own"], ["other", "small"]])
def test_an_allowed_model_is_settled_with_the_fallbacks_that_are_allowed_too(
    routing: Routing, allowed: list[str]
) -> None:
    serving = routing.find_serving("small", PoolStates(), None, allowed)
    assert serving.target.model == "small"
    fallbacks = [target.model for target in serving.alternatives]
    assert fallbacks == (["tuned"] if "group:own" in allowed else [])


def test_another_model_is_refused_by_the_name_that_was_asked_for(routing: Routing) -> None:
    with pytest.raises(Refusal) as caught:
        routing.find_serving("large", PoolStates(), "gpt-4o", ["small", "gpt-4o"])
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.param) == (403, "model_not_allowed", "model")
    assert "gpt-4o" in refusal.message
    assert "large" not in refusal.message


def test_an_unknown_model_is_answered_with_the_allowed_ones_alone(routing: Routing) -> None:
    with pytest.raises(Refusal) as caught:
        routing.find_serving("larg", PoolStates(), None, ["small"])
    assert caught.value.status == 404
    assert "Known models: small." in caught.value.message


def test_an_unknown_model_is_answered_with_the_allowed_aliases(routing: Routing) -> None:
    with pytest.raises(Refusal) as caught:
        routing.find_serving("larg", PoolStates(), None, ["alias:gpt-*", "alias:small"])
    assert "Known models: gpt-4o." in caught.value.message


@pytest.mark.parametrize(
    ("attributes", "model", "may"),
    [
        ({}, "any", True),
        ({"identity": {"tenant": "t"}}, "any", True),
        ({"identity": {"models": []}}, "any", False),
        ({"identity": {"models": "small"}}, "small", True),
        ({"identity": {"models": ["Small"]}}, "small", False),
        ({"identity": {"models": ["*"]}}, "any", True),
    ],
)
def test_without_a_list_all_models_may_be_used_and_with_an_empty_one_none(
    attributes: dict[str, JsonValue], model: str, may: bool
) -> None:
    assert may_use(allowed_models(attributes), model) is may
