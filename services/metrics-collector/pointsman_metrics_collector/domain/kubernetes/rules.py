"""Turns InferenceObjectives and InferenceModelRewrites into rules for a pool."""

from collections.abc import Iterable, Iterator
from typing import Final

from pointsman_contracts.pool import PoolRewrite, PoolRules, WeightedModel
from pointsman_metrics_collector.domain.kubernetes.objects import InferenceModelRewrite, InferenceObjective, RewriteRule

HIGHEST: Final = 1000
"""Priorities of requests are within this on both sides of 0; objectives may be any 32-bit number."""


def pool_rules(
    pool: str,
    inference_pool: str,
    objectives: Iterable[InferenceObjective],
    rewrites: Iterable[InferenceModelRewrite],
) -> PoolRules:
    """The objects' rules for the pool. The oldest rewrite's rules come first, in its order; exact names go before rules
    for everything (InferenceModelRewrite v1alpha2)."""
    ordered = sorted(
        (each for each in rewrites if each.spec.pool_ref.refers_to(inference_pool)),
        key=lambda each: (each.metadata.creation_timestamp, each.metadata.name),
    )
    return PoolRules(
        pool=pool,
        objectives={
            each.metadata.name: max(-HIGHEST, min(HIGHEST, each.spec.priority or 0))
            for each in sorted(objectives, key=lambda each: each.metadata.name)
            if each.spec.pool_ref.refers_to(inference_pool)
        },
        rewrites=tuple(
            found for each in ordered for rule in each.spec.rules for found in _rewrite(each.metadata.name, rule)
        ),
    )


def not_understood(inference_pool: str, rewrites: Iterable[InferenceModelRewrite]) -> Iterator[str]:
    """The parts of the pool's rules that are ignored."""
    for each in sorted(rewrites, key=lambda each: each.metadata.name):
        if not each.spec.pool_ref.refers_to(inference_pool):
            continue
        for number, rule in enumerate(each.spec.rules, start=1):
            if not rule.targets:
                yield f"rule {number} of the InferenceModelRewrite {each.metadata.name!r} has no targets"
            elif rule.matches and not _exact(rule):
                yield f"rule {number} of the InferenceModelRewrite {each.metadata.name!r} matches no exact name"


def _exact(rule: RewriteRule) -> tuple[str, ...]:
    models = [match.model for match in rule.matches if match.model is not None]
    return tuple(model.value for model in models if model.type == "Exact" and model.value)


def _rewrite(source: str, rule: RewriteRule) -> Iterable[PoolRewrite]:
    exact = _exact(rule)
    # A match of a kind that isn't known matches nothing here: it must not turn into a rule for everything.
    if rule.matches and not exact:
        return
    targets = _weighted(rule)
    if targets:
        yield PoolRewrite(source=source, match=exact, to=targets)


def _weighted(rule: RewriteRule) -> tuple[WeightedModel, ...]:
    """Without any weight all targets are alike; beside weighted ones, those without are never chosen."""
    weighted = [target for target in rule.targets if target.weight is not None]
    if weighted:
        return tuple(
            WeightedModel(model=target.model_rewrite, weight=float(target.weight))
            for target in weighted
            if target.weight
        )
    return tuple(WeightedModel(model=target.model_rewrite, weight=1.0) for target in rule.targets)
