"""The finding for one pool, from the collections that are watched for it."""

from collections.abc import Iterator, Mapping

from pointsman_contracts.pool import PoolRules
from pointsman_core.config import Kubernetes, Pool
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.domain.kubernetes.collections import (
    Collection,
    Look,
    T,
    inference_pool,
    objectives,
    pods,
    rewrites,
)
from pointsman_metrics_collector.domain.kubernetes.objects import InferencePool, KubeObject, Pod
from pointsman_metrics_collector.domain.kubernetes.pods import pod_engines
from pointsman_metrics_collector.domain.kubernetes.rules import not_understood, pool_rules


def wanted(where: Kubernetes, namespace: str, look: Look) -> Iterator[Collection[KubeObject]]:
    """The collections that a pool needs; `namespace` is the one where it names none."""
    namespace = where.namespace or namespace
    if where.inference_pool is not None:
        yield inference_pool(namespace, where.inference_pool)
        yield from objectives(namespace)
        yield from rewrites(namespace)
    chosen = _pods(where, namespace, look)
    if chosen is not None:
        yield chosen[0]


def find(
    name: str, pool: Pool, where: Kubernetes, namespace: str, look: Look, before: EngineSource | None, known: set[str]
) -> EngineSource | None:
    """The finding that comes after `before`; None before the cluster's first answer.

    Unseen parts stay as they were, and the problem names them. `known`: see `pod_engines`.
    """
    namespace = where.namespace or namespace
    engines = {} if before is None else dict(before.engines)
    rules = None if before is None or where.inference_pool is None else before.rules
    problems: list[str] = []
    answered = before is not None and before.answered
    if where.inference_pool is not None:
        seen = look(inference_pool(namespace, where.inference_pool))
        problems.append(seen.problem)
        missing = "" if seen.objects is None else _missing(seen.objects, where.inference_pool, namespace, seen.problem)
        if missing:
            answered = True
            engines.clear()
            problems.append(missing)
        found_rules, rule_problems = _rules(name, where.inference_pool, namespace, look)
        rules = found_rules or rules
        problems += rule_problems
    chosen = _pods(where, namespace, look)
    if chosen is not None:
        collection, ports = chosen
        found = look(collection)
        problems.append(found.problem)
        if found.objects is not None:
            answered = True
            engines = pod_engines(pool_name=name, pool=pool, where=where, ports=ports, pods=found.objects, known=known)
    problem = "; ".join(dict.fromkeys(filter(None, problems)))
    if before is None and not answered and not problem:
        return None
    return EngineSource("kubernetes", engines, problem, rules, answered)


def _pods(where: Kubernetes, namespace: str, look: Look) -> tuple[Collection[Pod], tuple[int, ...]] | None:
    """The pods and their ports; None while the InferencePool that names them isn't there."""
    if where.inference_pool is None:
        return pods(namespace, where.selector), where.ports
    objects = look(inference_pool(namespace, where.inference_pool)).objects
    pool = objects.get(where.inference_pool) if objects else None
    # A selector without labels would be every pod of the namespace.
    if pool is None or pool.is_terminating or not pool.spec.selector.match_labels or not pool.spec.target_ports:
        return None
    return pods(namespace, pool.spec.selector.match_labels), tuple(port.number for port in pool.spec.target_ports)


def _missing(objects: Mapping[str, InferencePool], name: str, namespace: str, problem: str) -> str:
    """Why no engine belongs to the InferencePool; empty when it is there, or when that isn't certain."""
    pool = objects.get(name)
    if pool is not None:
        return f"the InferencePool {name!r} in namespace {namespace!r} is being deleted" if pool.is_terminating else ""
    return "" if problem else f"the InferencePool {name!r} doesn't exist in namespace {namespace!r}"


def _rules(name: str, pool: str, namespace: str, look: Look) -> tuple[PoolRules | None, list[str]]:
    seen_objectives = [look(collection) for collection in objectives(namespace)]
    seen_rewrites = [look(collection) for collection in rewrites(namespace)]
    problems = [seen.problem for seen in (*seen_objectives, *seen_rewrites)]
    if any(seen.objects is None for seen in (*seen_objectives, *seen_rewrites)):
        return None, problems
    merged_objectives = _first(*(seen.objects or {} for seen in seen_objectives))
    merged_rewrites = _first(*(seen.objects or {} for seen in seen_rewrites))
    problems += not_understood(pool, merged_rewrites.values())
    return pool_rules(name, pool, merged_objectives.values(), merged_rewrites.values()), problems


def _first(*groups: Mapping[str, T]) -> dict[str, T]:
    merged: dict[str, T] = {}
    for group in reversed(groups):
        merged |= {name: each for name, each in group.items() if not each.is_terminating}
    return merged
