"""Which model serves requests for a name."""

from collections import Counter
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.config import ConfigError, load
from pointsman_core.rewriting import Rewrites

POOLS: Final = {"p": {"models": ["small", "large", "gpt-kept"]}}


def rewrites(*rules: dict[str, object]) -> Rewrites:
    return Rewrites(load({"pools": POOLS, "rewrites": list(rules)}).rewrites)


def model(compiled: Rewrites, name: str, request_id: str = "r", session: str | None = None) -> str | None:
    found = compiled.find_rewrite(name, request_id, session, {"x-team": request_id})
    return None if found is None else found.model


def problem(*rules: object, **sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load({"pools": POOLS, "rewrites": list(rules)} | sections)
    return str(caught.value)


@pytest.mark.requirement("S1-20")
def test_a_name_goes_before_patterns_and_patterns_in_order_before_the_rule_for_all() -> None:
    compiled = rewrites(
        {"match": "*", "to": "auto"},
        {"match": "gpt-4*", "to": "large"},
        {"match": ["gpt-*", "*-mini"], "to": "small"},
        {"match": ["gpt-4-exact", "gpt-kept"], "to": "gpt-kept"},
    )
    expected = {
        "gpt-4-exact": "gpt-kept",
        "gpt-kept": "gpt-kept",
        "gpt-4o-mini": "large",
        "gpt-3.5": "small",
        "o4-mini": "small",
        "claude": "auto",
        "": "auto",
        "gpt-4\n": "large",
    }
    assert {name: model(compiled, name) for name in expected} == expected


def test_a_name_that_no_rule_is_for_stays() -> None:
    compiled = rewrites({"match": "gpt-[4]*", "to": "small"})
    assert model(compiled, "gpt-4") is None
    assert model(compiled, "gpt-[4]o") == "small"
    assert model(rewrites(), "small") is None


@pytest.mark.requirement("S1-20")
def test_weights_are_shares_that_stick_to_a_session() -> None:
    compiled = rewrites({"match": "prod", "to": {"small": 90, "large": 10}})
    dealt = Counter(model(compiled, "prod", request_id=f"r{number}") for number in range(2000))
    assert 0.06 < dealt["large"] / 2000 < 0.14
    for number in range(20):
        assert len({model(compiled, "prod", f"r{turn}", f"s{number}") for turn in range(20)}) == 1
    moved = rewrites({"match": "prod", "to": {"small": 50, "large": 50}})
    for number in range(200):
        if model(compiled, "prod", "r", f"s{number}") == "large":
            assert model(moved, "prod", "r", f"s{number}") == "large"


def test_a_split_sticks_to_a_header_or_to_nothing() -> None:
    header = rewrites({"match": "prod", "to": ["small", "large"], "sticky": "header:X-Team"})
    assert all(len({model(header, "prod", "team", f"s{turn}") for turn in range(20)}) == 1 for _ in range(2))
    each = rewrites({"match": "prod", "to": ["small", "large"], "sticky": "request"})
    assert len({model(each, "prod", f"r{turn}", "s") for turn in range(50)}) == 2


@given(st.text(), st.text(min_size=1))
def test_any_name_is_rewritten_alike_by_every_replica(name: str, request_id: str) -> None:
    one, other = (rewrites({"match": "*", "to": ["small", "large"]}) for _ in range(2))
    assert model(one, name, request_id) == model(other, name, request_id)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"match": "a", "to": "smal"}, "rewrites.0.to: unknown model 'smal'; did you mean 'small'?"),
        ({"match": "a", "to": {"small": 0}}, "rewrites.0.to.small: Input should be greater than 0"),
        ({"match": [], "to": "small"}, "rewrites.0.match"),
        ({"match": "", "to": "small"}, "rewrites.0.match"),
        ({"match": "a", "to": {}}, "rewrites.0.to"),
        ({"match": "a", "to": "small", "sticky": "moon"}, "rewrites.0.sticky"),
        ({"match": "a", "too": "small"}, "unknown key 'too'; did you mean 'to'?"),
        ({"match": ["a", "b", "a"], "to": "autopilot"}, "unknown model 'autopilot'"),
    ],
)
def test_a_wrong_rewrite_is_refused_with_its_place(rule: dict[str, object], words: str) -> None:
    assert words in problem(rule)


def test_two_rules_for_one_name_are_refused() -> None:
    rule = {"match": "gpt-*", "to": "small"}
    assert "rewrites.1.match: rewrites.0 matches 'gpt-*' already" in problem(rule, rule)


def test_a_model_that_only_engines_know_may_serve() -> None:
    config = load({"pools": POOLS | {"open": {}}, "rewrites": [{"match": "a", "to": "reported-later"}]})
    assert config.list_aliases() == ["a"]
    assert load({"pools": POOLS, "rewrites": [{"match": ["b", "c*"], "to": "auto/fast"}]}).list_aliases() == ["b"]
