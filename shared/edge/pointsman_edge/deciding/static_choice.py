"""The edge decides alone: from the last pool snapshot and its own counts, while the bus or the scheduler is missing.

That is allowed only where nothing is skipped that the configuration insists on: preprocessing plugins (who may ask,
and how much) and stages that fail closed can't be run here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, cast

from pointsman_contracts.journey import AFTER, BodyEdit, Stage, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.config import AUTO, Config, Profile, active, response_entry, stage_entry
from pointsman_core.given_worker import given_worker
from pointsman_core.refusal import Refusal
from pointsman_core.rewriting import Rewrites
from pointsman_core.subset import named, place_of, subset_of
from pointsman_core.unknown_model import unknown_model


class Eligible(NamedTuple):
    """The restrictions that trusted proxies set. None: no restriction."""

    worker: str | None = None
    subset: tuple[str, ...] | None = None

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "Eligible":
        """Read them from a request's headers, from which untrusted ones are removed."""
        return cls(given_worker(headers), subset_of(headers))

    def keep_eligible(self, engines: Iterable[WorkerView]) -> list[WorkerView]:
        """The engines that may be chosen."""
        left = [view for view in engines if self.worker in (None, view.worker, view.server)]
        if self.subset is None:
            return left
        keep = named([place_of(view.url) for view in left], self.subset)
        return [view for view, kept in zip(left, keep, strict=True) if kept]


RETRY_AFTER_S: Final = 1.0
ENDPOINTS: Final = 3
"""The first choice and two to fall back on."""
ALL: Final = Eligible()


class Closed(Refusal):
    """503 with Retry-After: a part is missing that the configuration insists on."""

    def __init__(
        self,
        message: str,
        code: str = "gateway_unavailable",
        *,
        dropped_reason: str = "rejected-unavailable",
        detail: str | None = None,
    ) -> None:
        super().__init__(
            503,
            message,
            type="server_error",
            code=code,
            retry_after_s=RETRY_AFTER_S,
            dropped_reason=dropped_reason,
            detail=detail,
        )


class NoEndpoints(Closed):
    """No engine is known that may serve the request."""

    def __init__(self, message: str, code: str = "gateway_unavailable") -> None:
        super().__init__(message, code, dropped_reason="rejected-no-endpoints")


def outside_subset() -> Closed:
    """No engine is known that the proxy's subset names."""
    return NoEndpoints("No engine of those that the proxy allows can be used.", "endpoint_not_in_subset")


class StaticPolicy(NamedTuple):
    """The decisions that the edge may make alone under a configuration."""

    closed: str | None
    """Why it may not; None when it may."""
    profile: str
    """The profile of every request; empty if only the profile-picker can choose it."""
    selectable: tuple[str, ...]
    """Models that a model-selector of a possible profile chooses among, in the configuration's order."""
    rewrites: Rewrites
    cluster_rewrites: bool
    """Whether a cluster's InferenceModelRewrites may map further names to models, which only the stages know."""


class StaticChoice(NamedTuple):
    """The endpoints in order, and the edits of the body."""

    target: Target
    endpoints: tuple[ChosenEndpoint, ...]
    body: tuple[BodyEdit, ...]


class EngineState(NamedTuple):
    """The edge's own view of engines, by worker."""

    open_on: Callable[[str], int]
    avoided: Callable[[str], bool]


def static_policy(config: Config) -> StaticPolicy:
    """Read the configuration once."""
    profiles = _possible(config)
    reasons = [
        f"preprocessing plugin {use.name or use.use} can't be skipped"
        for use in config.preprocessing
        if use.mode == "enforce" and (use.name or use.use) not in config.edge.static_skips
    ]
    for name, profile in profiles.items():
        if profile.static == "deny":
            reasons.append(f"profile {name} doesn't allow it")
        reasons += [
            f"profile {name} requires {use.service}"
            for use in active(profile.request)
            if use.service not in ("scheduler", "model-selector") and _insists(stage_entry(use, config.stages))
        ]
        if any((each.processors.before_model, each.processors.after_model) != ((), ()) for each in (profile, config)):
            reasons.append(f"profile {name} has request processors, which run in other services")
        reasons += [
            f"profile {name} requires {use.service} for responses"
            for use in active(profile.response)
            if _insists(response_entry(use, config.stages))
        ]
    reasons += [
        f"postprocessing requires {use.service}"
        for use in active(config.postprocessing)
        if _insists(response_entry(use, config.stages))
    ]
    return StaticPolicy(
        "; ".join(dict.fromkeys(reasons)) or None,
        next(iter(profiles)) if len(profiles) == 1 else "",
        tuple(dict.fromkeys(_selectable(config, profiles))),
        Rewrites(config.rewrites),
        any(pool.kubernetes is not None and pool.kubernetes.inference_pool for pool in config.pools.values()),
    )


def choose(
    config: Config,
    policy: StaticPolicy,
    pools: Mapping[str, PoolSnapshot],
    model: str,
    engines: EngineState,
    turn: int,
    eligible: Eligible = ALL,
) -> StaticChoice:
    """Pick endpoints for `model`. Raises Refusal: 404 for an unknown model, 503 if the edge can't decide.

    `turn` counts choices; it spreads requests over engines that are otherwise equal, and deals the shares of a rewrite.
    """
    rewritten = policy.rewrites.find_rewrite(model, str(turn), None, {})
    target = _target(
        config=config,
        policy=policy,
        pools=pools,
        model=model if rewritten is None else rewritten.model,
        asked=model,
        eligible=eligible,
    )
    edits = (BodyEdit(field="model", value=target.model),) if target.model != model else ()
    if target.provider is not None:
        if eligible.worker not in (None, target.provider):
            raise _no_engine(model, eligible)
        return StaticChoice(target, (ChosenEndpoint(worker=target.provider, url="", target=target),), edits)
    workers = _workers(config, target, pools, eligible)
    if not workers:
        raise _no_engine(model, eligible)
    offset = turn % len(workers)
    workers = sorted(
        workers[offset:] + workers[:offset],
        key=lambda view: (engines.avoided(view.worker), engines.open_on(view.worker), view.running + view.waiting),
    )
    return StaticChoice(target, tuple([endpoint_of(view) for view in workers[:ENDPOINTS]]), edits)


def endpoint_of(view: WorkerView, target: Target | None = None) -> ChosenEndpoint:
    """The worker as an endpoint of a decision; `target` as there."""
    return ChosenEndpoint(worker=view.worker, url=view.url, target=target, rank=view.rank, rank_field=view.rank_field)


def elsewhere(
    config: Config, pools: Mapping[str, PoolSnapshot], target: Target, engines: EngineState
) -> ChosenEndpoint | None:
    """An endpoint for another model than the decided one: its provider, or the least busy engine of its pool; None if
    none is known."""
    if target.provider is not None:
        return ChosenEndpoint(worker=target.provider, url="", target=target)
    workers = _workers(config, target, pools, ALL) if target.pool in config.pools else []
    if not workers:
        return None
    best = min(
        workers,
        key=lambda view: (engines.avoided(view.worker), engines.open_on(view.worker), view.running + view.waiting),
    )
    return endpoint_of(best, target)


def _no_engine(model: str, eligible: Eligible) -> Closed:
    if eligible.worker is not None:
        return NoEndpoints("The worker that the request names can't be reached at the moment; try again shortly.")
    if eligible.subset is not None:
        return outside_subset()
    return NoEndpoints(f"No engine of the pool that serves {model[:100]!r} is known; try again shortly.")


def _possible(config: Config) -> Mapping[str, Profile]:
    """The profiles that a request may get, as far as the edge knows without the profile-picker."""
    picker = config.profile_picker
    if picker.use == "single":
        chosen = (picker.model_extra or {}).get("profile") or picker.default
        if isinstance(chosen, str) and chosen in config.profiles:
            return {chosen: config.profiles[chosen]}
    named = set(_profiles_of_rules((picker.model_extra or {}).get("rules"))) if picker.use == "rules" else None
    if named:
        return {name: each for name, each in config.profiles.items() if name in named or name == picker.default}
    return config.profiles


def _profiles_of_rules(rules: object) -> Iterator[object]:
    """The profiles that these rules may choose; the profile-picker refuses what isn't rules."""
    for rule in cast("list[object]", rules) if isinstance(rules, list) else []:
        if isinstance(rule, dict):
            read = cast("dict[str, object]", rule)
            share = read.get("share")
            split = cast("dict[str, object]", share).get("split") if isinstance(share, dict) else None
            yield from (read.get("profile"), *(cast("dict[str, object]", split) if isinstance(split, dict) else ()))


def _selectable(config: Config, profiles: Mapping[str, Profile]) -> Iterator[str]:
    for profile in profiles.values():
        for use in active(profile.request):
            if use.service == "model-selector" and not use.shadow:
                yield from config.selectors[use.policy or ""].models or config.models


def _insists(entry: Mapping[str, object]) -> bool:
    stage = read_fields(Stage, entry)
    blocking = stage.answer is None or stage.answer.mode != AFTER
    return blocking and stage.on_error == "deny"


def _target(
    config: Config,
    policy: StaticPolicy,
    pools: Mapping[str, PoolSnapshot],
    model: str,
    asked: str,
    eligible: Eligible,
) -> Target:
    target = config.find_target(model)
    if target is not None:
        return target
    for name in config.open_pools():
        snapshot = pools.get(name)
        if snapshot is not None and model in snapshot.models:
            loras = {lora for view in snapshot.workers for lora in view.loras}
            return Target(model=model, pool=name, lora=model if model in loras else None)
    if policy.selectable and (model == AUTO or model.startswith(f"{AUTO}/")):
        return _selected(config, policy, pools, model.partition("/")[2], eligible)
    if policy.cluster_rewrites:
        raise Closed(
            f"The gateway doesn't know at the moment whether the model {asked[:100]!r} exists; try again shortly."
        )
    raise unknown_model(asked, model_names(config, pools))


def _selected(
    config: Config, policy: StaticPolicy, pools: Mapping[str, PoolSnapshot], group: str, eligible: Eligible
) -> Target:
    """The first selectable model with an engine; ranking them takes the model-selector."""
    for name in policy.selectable:
        target = config.find_target(name)
        if target is None or target.pool is None or (group and group not in config.models[name].groups):
            continue
        if _workers(config, target, pools, eligible):
            return target
    raise NoEndpoints("No model can be chosen at the moment; name one, or try again shortly.")


def _workers(config: Config, target: Target, pools: Mapping[str, PoolSnapshot], eligible: Eligible) -> list[WorkerView]:
    """Engines that serve the target: those that were serving in the last snapshot, or else all of them."""
    pool = target.pool or ""
    snapshot = pools.get(pool)
    if snapshot is None or not snapshot.workers:
        return eligible.keep_eligible(
            WorkerView(worker=engine.worker_name, url=engine.url) for engine in config.pools[pool].engines
        )
    able = [
        view
        for view in eligible.keep_eligible(snapshot.workers)
        if view.url and (not view.models or target.model in (*view.models, *view.loras))
    ]
    return best_standing(able)


_STANDING: Final = {"serving": 0, "draining": 2, "asleep": 2}
_UNWELL: Final = frozenset({"ejected", "suspect"})


def best_standing(views: Iterable[WorkerView]) -> list[WorkerView]:
    """The engines that serve and that schedulers find well; while there is none, those that serve; then the ones that
    can't be heard, for a snapshot may be old or wrong about all of them; last those that drain or sleep."""
    by_standing: dict[tuple[int, bool], list[WorkerView]] = {}
    for view in views:
        state = "draining" if view.draining is not None else view.state
        standing = _STANDING.get(state, 1), view.verdict in _UNWELL
        by_standing.setdefault(standing, []).append(view)
    return by_standing[min(by_standing)] if by_standing else []


def model_names(config: Config, pools: Mapping[str, PoolSnapshot]) -> list[str]:
    """Configured models first, then the names that are rewritten to them, then those that the engines of open pools
    report."""
    named = config.open_pools()
    reported = (name for pool, snapshot in pools.items() if pool in named for name in snapshot.models)
    return list(dict.fromkeys((*config.model_names(), *config.list_aliases(), *reported)))
