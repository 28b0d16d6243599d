"""Names and objectives of a cluster, beside those of the configuration."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from pointsman_contracts.pool import PoolRewrite, PoolRules, WeightedModel
from pointsman_core.config import load
from pointsman_core.refusal import Refusal
from pointsman_preprocessor.adapters.cluster_rules import ClusterRules
from pointsman_preprocessor.domain.pool_rules import NameRules
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_runtime.jetstream.watched_keys import Entry

POOLS: dict[str, Any] = {"a": {"models": ["ma"]}, "b": {"models": ["mb"]}}


def names(**sections: Any) -> NameRules:
    return NameRules(load({"pools": POOLS, **sections}))


def rewrite(*match: str, source: str = "r", **to: float) -> PoolRewrite:
    targets = tuple(WeightedModel(model=model, weight=weight) for model, weight in to.items())
    return PoolRewrite(source=source, match=match, to=targets)


def rules(pool: str, *rewrites: PoolRewrite, **objectives: int) -> dict[str, PoolRules]:
    return {pool: PoolRules(pool=pool, rewrites=rewrites, objectives=objectives)}


def model(of: NameRules, name: str, request_id: str = "r1", session: str | None = None) -> str | None:
    found = of.rewrite_model(name, request_id, session, {})
    return None if found is None else found.model


def test_exact_names_go_before_rules_for_everything_and_those_only_for_their_pool() -> None:
    known = names()
    known.set_cluster_rules(
        rules("a", rewrite(every=1.0), rewrite("food", food_v1=1.0), rewrite("food", food_v2=1.0, source="young"))
    )
    assert model(known, "food") == "food_v1"
    assert model(known, "ma") == "every"
    assert model(known, "mb") is None, "another pool serves it"
    assert model(known, "nobody") is None, "which pool's it is isn't known"
    assert known.conflicts == (), "an older rule of the same pool goes first, as the API has it"
    known.set_cluster_rules({})
    assert model(known, "food") is None


def test_of_one_pool_a_rule_for_everything_is_for_any_name() -> None:
    known = NameRules(load({"pools": {"a": {"models": ["ma"]}}, "providers": {}}))
    known.set_cluster_rules(rules("a", rewrite(every=1.0)))
    assert model(known, "whatever") == "every"


def test_weights_share_requests_and_a_session_stays() -> None:
    known = names()
    known.set_cluster_rules(rules("a", rewrite("food", v1=9.0, v2=1.0)))
    dealt = Counter(model(known, "food", f"r{number}") for number in range(2000))
    assert 120 < dealt["v2"] < 280
    assert len({model(known, "food", f"r{number}", session="s") for number in range(50)}) == 1


def test_the_configuration_wins_and_what_is_in_vain_is_named() -> None:
    known = names(rewrites=[{"match": "gpt-*", "to": "mb"}], objectives={"vip": 9, "same": 1})
    said = rules("a", rewrite("gpt-4o", x=1.0), rewrite("mb", x=1.0), vip=50, same=1, own=3)
    said |= rules("b", rewrite("free", y=1.0))
    said["a"] = replace(said["a"], rewrites=(*said["a"].rewrites, rewrite("free", x=1.0)))
    known.set_cluster_rules(said)
    assert (model(known, "gpt-4o"), model(known, "mb"), model(known, "free")) == ("mb", None, "x")
    assert (known.priority_of("vip", "ma"), known.priority_of("own", "ma"), known.priority_of("none", "ma")) == (
        9,
        3,
        0,
    )
    assert known.conflicts == (
        "InferenceModelRewrite a/r for the model 'gpt-4o': the configuration rewrites it (rewrites: gpt-*)",
        "InferenceModelRewrite a/r for the model 'mb': the configuration serves it by b",
        "InferenceObjective a/vip with priority 50: the configuration says 9",
        "InferenceModelRewrite b/r for the model 'free': a/r rewrites it",
    )


def test_an_objective_of_the_models_pool_counts_and_of_the_first_pool_where_that_is_open() -> None:
    known = names()
    known.set_cluster_rules(rules("b", vip=2) | rules("a", vip=1))
    assert [known.priority_of("vip", name) for name in ("ma", "mb", "auto")] == [1, 2, 1]


def test_an_objective_is_read_by_both_names_unless_the_priority_itself_is_said() -> None:
    assert read_headers({"x-gateway-inference-objective": "vip"}).objective == "vip"
    assert read_headers({"x-pointsman-objective": "n", "x-gateway-inference-objective": "o"}).objective == "n"
    said = read_headers({"x-pointsman-objective": "vip", "x-pointsman-priority": "3"})
    assert (said.objective, said.priority) == (None, 3)
    with pytest.raises(Refusal, match="printable"):
        read_headers({"x-pointsman-objective": "x" * 300})


def test_every_kept_revision_gets_the_rules_and_each_conflict_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    # Without a bus: revisions are given by hand.
    cluster = ClusterRules(None)  # type: ignore[arg-type]
    first, second = names(objectives={"vip": 9}), names()
    cluster.pass_rules_to(first)
    put, gone = cluster._put, cluster._gone  # pyright: ignore[reportPrivateUsage] - what the bucket calls
    put(Entry("a", rules("a", rewrite("food", v1=1.0), vip=5)["a"].encode(), 1))
    cluster.pass_rules_to(second)
    put(Entry("b", b"no rules", 2))
    assert model(first, "food") == model(second, "food") == "v1"
    assert (first.priority_of("vip", "ma"), second.priority_of("vip", "ma")) == (9, 5)
    assert [record.message for record in caplog.records].count("rule_without_effect") == 1
    gone("a")
    gone("b")
    assert model(first, "food") is None
    assert second.priority_of("vip", "ma") == 0


def test_rules_that_are_stored_under_another_key_too_stay_until_the_last_is_gone() -> None:
    # Without a bus, as above.
    cluster = ClusterRules(None)  # type: ignore[arg-type]
    cluster.pass_rules_to(reader := names())
    put, gone = cluster._put, cluster._gone  # pyright: ignore[reportPrivateUsage] - what the bucket calls
    entry = rules("a", rewrite("food", v1=1.0))["a"].encode()
    put(Entry("former", entry, 1))
    put(Entry("a", entry, 2))
    gone("former")
    assert model(reader, "food") == "v1"
    gone("a")
    assert model(reader, "food") is None
