"""The effect of pods, InferencePools, InferenceObjectives and InferenceModelRewrites on a pool."""

from typing import Any

import pytest

from pointsman_contracts.pool import PoolRewrite, WeightedModel
from pointsman_core.config import load
from pointsman_metrics_collector.domain.engines import ScrapedEngine
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.domain.kubernetes.collections import (
    Collection,
    Seen,
    T,
    inference_pool,
    objectives,
    pods,
    rewrites,
)
from pointsman_metrics_collector.domain.kubernetes.finding import find, wanted
from pointsman_metrics_collector.domain.kubernetes.objects import (
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    KubeObject,
    Metadata,
    Pod,
)
from pointsman_metrics_collector.domain.kubernetes.pods import pod_engines
from pointsman_metrics_collector.domain.kubernetes.rules import pool_rules
from pointsman_testing import kube_objects

NAMESPACE = "here"


def pod(name: str = "a", ip: str = "10.0.0.1", **changes: Any) -> Pod:
    return Pod.model_validate(kube_objects.pod(name, ip, **changes))


def engines(
    *found: Pod, known: set[str] | None = None, ports: tuple[int, ...] = (8000,), **where: Any
) -> dict[str, ScrapedEngine]:
    section = {"selector": {"app": "x"}, "ports": list(ports), **where}
    config = load(
        {"pools": {"p": {"models": ["m", "l"], "loras": ["l"], "discovery": "kubernetes", "kubernetes": section}}}
    )
    pool = config.pools["p"]
    assert pool.kubernetes is not None
    by_name = {each.metadata.name: each for each in found}
    named = pod_engines("p", pool, pool.kubernetes, ports, by_name, set() if known is None else known)
    return {worker: engine for (_, worker), engine in named.items()}


def test_a_ready_pod_is_an_engine_with_its_address_labels_and_models() -> None:
    found = engines(pod(labels={"llm-d.ai/role": "decode", "rack": "7"}))
    worker = found["a"].worker
    assert (worker.url, worker.role, worker.models) == ("http://10.0.0.1:8000", "decode", ("m",))
    assert worker.labels == {"llm-d.ai/role": "decode", "rack": "7", "kubernetes.io/hostname": "n1"}
    assert not found["a"].draining
    assert found["a"].engine is None


def test_each_target_port_is_an_endpoint_of_its_own() -> None:
    found = engines(pod(ip="fd00::1"), ports=(8000, 8001), scheme="https", metrics_port=9400)
    assert {name: engine.worker.url for name, engine in found.items()} == {
        "a:8000": "https://[fd00::1]:8000", "a:8001": "https://[fd00::1]:8001",
    }  # fmt: skip
    assert {engine.metrics_url for engine in found.values()} == {"http://[fd00::1]:9400/metrics"}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"inference.networking.k8s.io/active-ports": "8000, 8002"}, {"a:8000", "a:8002"}),
        ({"llm-d.ai/active-ports": "8001", "inference.networking.k8s.io/active-ports": "8000"}, {"a:8001"}),
        ({"llm-d.ai/active-ports": "9999,x,"}, set[str]()),
        ({"llm-d.ai/active-ports": ""}, set[str]()),
        ({}, {"a:8000", "a:8001", "a:8002"}),
    ],
)
def test_only_ports_that_a_pod_says_are_active_are_endpoints(annotations: dict[str, str], expected: set[str]) -> None:
    assert set(engines(pod(annotations=annotations), ports=(8000, 8001, 8002))) == expected


def test_a_pod_that_was_ready_drains_and_one_that_never_was_is_left_out() -> None:
    known: set[str] = set()
    assert not engines(pod(ready=False), known=known), "nobody listens there yet"
    assert not engines(pod(terminating=True), known=known)
    assert not engines(pod(), known=known)["a"].draining
    assert engines(pod(ready=False), known=known)["a"].draining, "an overloaded engine misses its probe"
    assert engines(pod(terminating=True), known=known)["a"].draining
    assert not engines(pod(ready=False, uid="another"), known=known), "its successor was never ready"
    assert not engines(pod(uid="another"), known=known)["a"].draining


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Pending", "Unknown"])
def test_an_evicted_or_finished_pod_is_no_engine_though_its_status_has_an_address(phase: str) -> None:
    known = {"uid-a"}
    assert not engines(pod(phase=phase), known=known)
    assert not engines(pod(ip=""), known=known)


def rewrite(name: str, created: str, *rules: dict[str, Any], pool: str = "ip") -> InferenceModelRewrite:
    metadata = {"name": name, "creationTimestamp": created}
    return InferenceModelRewrite.model_validate(
        {"metadata": metadata, "spec": {"poolRef": {"name": pool}, "rules": list(rules)}}
    )


def exact(*names: str) -> list[dict[str, Any]]:
    return [{"model": {"type": "Exact", "value": name}} for name in names]


def target(model: str, weight: int | None = None) -> dict[str, Any]:
    return {"modelRewrite": model} | ({} if weight is None else {"weight": weight})


def test_objectives_of_the_pool_have_their_priorities() -> None:
    def objective(name: str, priority: int | None, pool: str = "ip") -> InferenceObjective:
        spec = {"poolRef": {"name": pool}} | ({} if priority is None else {"priority": priority})
        return InferenceObjective.model_validate({"metadata": {"name": name}, "spec": spec})

    found = [objective("vip", 50), objective("none", None), objective("batch", -(2**31)), objective("far", 9, "other")]
    assert pool_rules("p", "ip", found, []).objectives == {"vip": 50, "none": 0, "batch": -1000}


def test_rules_of_the_oldest_object_go_first_and_weights_are_as_the_api_says() -> None:
    unknown = [{"model": {"type": "Regex", "value": ".*"}}]
    found = [
        rewrite("young", "2026-02-01T00:00:00Z", {"matches": exact("a"), "targets": [target("late")]}),
        rewrite(
            "old",
            "2026-01-01T00:00:00Z",
            {"matches": exact("a", "b"), "targets": [target("x", 9), target("y", 1), target("never")]},
            {"targets": [target("u"), target("v")]},
        ),
        rewrite("elsewhere", "2025-01-01T00:00:00Z", {"targets": [target("z")]}, pool="other"),
        rewrite("odd", "2025-01-01T00:00:00Z", {"matches": unknown, "targets": [target("z")]}),
        rewrite("empty", "2025-01-01T00:00:00Z", {"matches": exact("c")}),
    ]  # fmt: skip

    def to(*shares: tuple[str, float]) -> tuple[WeightedModel, ...]:
        return tuple(WeightedModel(model=model, weight=weight) for model, weight in shares)

    assert pool_rules("p", "ip", [], found).rewrites == (
        PoolRewrite(source="old", match=("a", "b"), to=to(("x", 9.0), ("y", 1.0))),
        PoolRewrite(source="old", to=to(("u", 1.0), ("v", 1.0))),
        PoolRewrite(source="young", match=("a",), to=to(("late", 1.0))),
    )


def test_a_rewrite_of_an_older_extension_says_split_where_later_ones_say_targets() -> None:
    old = rewrite("old", "2026-01-01T00:00:00Z", {"matches": exact("a"), "split": [target("x", 9), target("y", 1)]})
    [rule] = pool_rules("p", "ip", [], [old]).rewrites
    assert [(each.model, each.weight) for each in rule.to] == [("x", 9.0), ("y", 1.0)]


@pytest.mark.parametrize(
    ("ref", "counts"),
    [
        ({"group": "inference.networking.k8s.io", "kind": "InferencePool"}, True),
        ({}, True),
        ({"group": "inference.networking.x-k8s.io", "kind": "InferencePool"}, False),
        ({"group": "inference.networking.k8s.io", "kind": "InferencePoolImport"}, False),
        ({"group": "", "kind": "Service"}, False),
    ],
)
def test_an_object_about_something_else_of_the_pools_name_is_not_about_the_pool(
    ref: dict[str, str], counts: bool
) -> None:
    objective = InferenceObjective.model_validate(
        {"metadata": {"name": "vip"}, "spec": {"priority": 5, "poolRef": {"name": "ip", **ref}}}
    )
    spec = {"poolRef": {"name": "ip", **ref}, "rules": [{"targets": [target("z")]}]}
    all_of_it = InferenceModelRewrite.model_validate({"metadata": {"name": "r"}, "spec": spec})
    rules = pool_rules("p", "ip", [objective], [all_of_it])
    assert (bool(rules.objectives), bool(rules.rewrites)) == (counts, counts)


class Seeing:
    """The collections of a cluster, as far as they are known."""

    def __init__(self) -> None:
        self.seen: dict[Collection[KubeObject], Seen[KubeObject]] = {}

    def look(self, collection: Collection[T]) -> Seen[T]:
        # The objects are of their collection's type, which the type of a dict can't say.
        return self.seen.get(collection, Seen())  # type: ignore[return-value, arg-type]

    def has(self, collection: Collection[KubeObject], *found: KubeObject, problem: str = "") -> None:
        self.seen[collection] = Seen({each.metadata.name: each for each in found}, problem)


POOL = load({"pools": {"p": {"discovery": "kubernetes", "kubernetes": {"inference_pool": "ip"}}}}).pools["p"]


def looked(seeing: Seeing, before: EngineSource | None = None) -> EngineSource | None:
    assert POOL.kubernetes is not None
    return find("p", POOL, POOL.kubernetes, NAMESPACE, seeing.look, before, set())


def of_pool(port: int = 8000, **labels: str) -> InferencePool:
    spec = {"selector": {"matchLabels": labels or {"app": "x"}}, "targetPorts": [{"number": port}]}
    return InferencePool.model_validate({"metadata": {"name": "ip"}, "spec": spec})


def test_a_pool_is_watched_with_what_its_inference_pool_names() -> None:
    seeing = Seeing()
    assert POOL.kubernetes is not None
    alone = {inference_pool(NAMESPACE, "ip"), *objectives(NAMESPACE), *rewrites(NAMESPACE)}
    assert set(wanted(POOL.kubernetes, NAMESPACE, seeing.look)) == alone
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool())
    assert set(wanted(POOL.kubernetes, NAMESPACE, seeing.look)) == {*alone, pods(NAMESPACE, {"app": "x"})}
    assert inference_pool(NAMESPACE, "ip").path.endswith(
        "/inference.networking.k8s.io/v1/namespaces/here/inferencepools"
    )


def test_nothing_is_said_before_the_cluster_answered_and_nothing_is_dropped_before_it_answers_again() -> None:
    seeing = Seeing()
    assert looked(seeing) is None
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool())
    assert looked(seeing) is None, "its pods aren't listed yet"
    seeing.has(pods(NAMESPACE, {"app": "x"}), pod())
    first = looked(seeing)
    assert first is not None
    assert (list(first.engines), first.problem, first.rules) == ([("p", "a")], "", None)
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool(app="y"))
    second = looked(seeing, first)
    assert second is not None
    assert second.engines == first.engines, "the pods of the new selector aren't listed yet"
    seeing.has(pods(NAMESPACE, {"app": "y"}), pod("b"))
    third = looked(seeing, second)
    assert third is not None
    assert list(third.engines) == [("p", "b")]


def test_a_deleted_inference_pool_has_no_engines_and_an_unreachable_server_keeps_them() -> None:
    seeing = Seeing()
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool(), problem="the API server isn't reached")
    seeing.has(pods(NAMESPACE, {"app": "x"}), pod(), problem="the API server isn't reached")
    old = looked(seeing)
    assert old is not None
    assert (len(old.engines), old.problem) == (1, "the API server isn't reached")
    seeing.has(inference_pool(NAMESPACE, "ip"))
    gone = looked(seeing, old)
    assert gone is not None
    assert (len(gone.engines), gone.problem) == (0, "the InferencePool 'ip' doesn't exist in namespace 'here'")


def test_an_inference_pool_that_is_being_deleted_has_no_engines() -> None:
    seeing = Seeing()
    seeing.has(pods(NAMESPACE, {"app": "x"}), pod())
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool())
    before = looked(seeing)
    assert before is not None
    ending = of_pool().model_copy(update={"metadata": Metadata(name="ip", deletion_timestamp="2026-01-01T00:00:00Z")})
    seeing.has(inference_pool(NAMESPACE, "ip"), ending)
    after = looked(seeing, before)
    assert after is not None
    assert (len(before.engines), len(after.engines)) == (1, 0)
    assert after.problem == "the InferencePool 'ip' in namespace 'here' is being deleted"


def test_objectives_and_rewrites_that_are_being_deleted_are_gone() -> None:
    seeing = Seeing()
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool())
    seeing.has(pods(NAMESPACE, {"app": "x"}))
    for collection in (*objectives(NAMESPACE), *rewrites(NAMESPACE)):
        seeing.has(collection)
    metadata = {"name": "ending", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"poolRef": {"name": "ip"}, "priority": 9, "rules": [{"targets": [target("z")]}]}
    seeing.has(objectives(NAMESPACE)[0], InferenceObjective.model_validate({"metadata": metadata, "spec": spec}))
    seeing.has(rewrites(NAMESPACE)[1], InferenceModelRewrite.model_validate({"metadata": metadata, "spec": spec}))
    found = looked(seeing)
    assert found is not None
    assert found.rules is not None
    assert (found.rules.objectives, found.rules.rewrites) == ({}, ())


def test_a_rule_that_is_not_understood_is_reported() -> None:
    seeing = Seeing()
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool())
    seeing.has(pods(NAMESPACE, {"app": "x"}))
    for collection in (*objectives(NAMESPACE), *rewrites(NAMESPACE)):
        seeing.has(collection)
    regex = [{"model": {"type": "Regex", "value": ".*"}}]
    seeing.has(
        rewrites(NAMESPACE)[0],
        rewrite("odd", "", {"matches": exact("a")}, {"matches": regex, "targets": [target("z")]}),
    )
    found = looked(seeing)
    assert found is not None
    assert found.problem == (
        "rule 1 of the InferenceModelRewrite 'odd' has no targets; "
        "rule 2 of the InferenceModelRewrite 'odd' matches no exact name"
    )


def test_collections_are_named_with_their_group() -> None:
    newer, older = objectives(NAMESPACE)
    assert str(newer) == "inferenceobjectives.llm-d.ai in namespace here"
    assert str(older) == "inferenceobjectives.inference.networking.x-k8s.io in namespace here"
    assert str(inference_pool(NAMESPACE, "ip")) == "inferencepools.inference.networking.k8s.io ip in namespace here"
    assert str(pods(NAMESPACE, {})) == "pods in namespace here"


def test_a_selector_without_labels_is_not_every_pod_of_the_namespace() -> None:
    seeing = Seeing()
    assert POOL.kubernetes is not None
    empty = InferencePool.model_validate({"metadata": {"name": "ip"}, "spec": {"targetPorts": [{"number": 1}]}})
    seeing.has(inference_pool(NAMESPACE, "ip"), empty)
    assert not [each for each in wanted(POOL.kubernetes, NAMESPACE, seeing.look) if each.plural == "pods"]


def test_rules_are_known_when_every_group_was_answered_and_the_newer_group_counts() -> None:
    seeing = Seeing()
    seeing.has(inference_pool(NAMESPACE, "ip"), of_pool())
    seeing.has(pods(NAMESPACE, {"app": "x"}))
    newer, older = objectives(NAMESPACE)

    def vip(priority: int) -> InferenceObjective:
        spec = {"priority": priority, "poolRef": {"name": "ip"}}
        return InferenceObjective.model_validate({"metadata": {"name": "vip"}, "spec": spec})

    seeing.has(newer, vip(7))
    found = looked(seeing)
    assert found is not None
    assert found.rules is None
    for collection in (*rewrites(NAMESPACE), older):
        seeing.has(collection)
    seeing.has(older, vip(3))
    found = looked(seeing)
    assert found is not None
    assert found.rules is not None
    assert found.rules.objectives == {"vip": 7}
