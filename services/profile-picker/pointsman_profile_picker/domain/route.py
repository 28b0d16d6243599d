"""One configuration revision at this stage: it picks the profile, writes the itinerary and finds the target."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from pointsman_contracts.identity import IDENTITY, LEVEL
from pointsman_contracts.journey import FactsChanges, Journey, RequestFacts, Stage, Target
from pointsman_contracts.message import read_fields
from pointsman_core.config import AUTO, Config, active, response_entry, stage_entry
from pointsman_core.permission import may_ask, may_use, not_allowed
from pointsman_core.refusal import Refusal
from pointsman_core.service_level import facts_of_level
from pointsman_core.unknown_model import NAMED, unknown_model
from pointsman_plugins.picking import UNHEARD_OF, Choice, PickError, PoolStates, ProfilePicker
from pointsman_plugins.profile_chains import build_chains
from pointsman_plugins.registry import Registry

_SELECTOR: Final = "model-selector"
_KNOWN: Final = 1024
"""Choices that are remembered."""


def registry(builtin: Iterable[type[ProfilePicker]]) -> Registry[ProfilePicker]:
    """All profile pickers: the built-in ones and those of other distributions."""
    return Registry(ProfilePicker, builtin)


class ProfileRoute(NamedTuple):
    """A profile as it is written into a journey."""

    request: tuple[Stage, ...]
    response: tuple[Stage, ...]
    selects: bool
    """Whether a model-selector settles the target."""
    slo: FactsChanges | None
    """Its service level, as the changes of a request's facts that have none."""


class Picked(NamedTuple):
    """The changes that the stage makes to a journey."""

    profile: str
    route: ProfileRoute
    note: str
    """The profile and why."""
    old_pools: tuple[str, ...]
    """Pools whose state was old when the choice depended on it."""


class Serving(NamedTuple):
    """Who serves a model."""

    target: Target
    block_tokens: int | None
    """Tokens in a prefix block of the target's pool; None at a provider."""
    alternatives: tuple[Target, ...]
    """Who serves its requests while the target can't."""


class Routing:
    """The compiled `profile-picker` and `profiles` sections, and the models that requests may name."""

    def __init__(self, config: Config, pickers: Registry[ProfilePicker]) -> None:
        """Raises PluginError for a picker that can't be built or names what doesn't exist."""
        use = config.profile_picker
        self._picker: Final = pickers.one(use.spec)
        self._picker.bind(config)
        undecided = use.on_undecided or ("error" if use.default is None else "default")
        self._default: Final = use.default if undecided == "default" else None
        self._pools: Final = tuple(config.pools)
        self._block_tokens: Final = {name: pool.block_tokens for name, pool in config.pools.items()}
        self._open_pools: Final = config.open_pools()
        self._unlisted: Final = tuple(name for name, pool in config.pools.items() if not pool.models)
        """Pools whose engines alone name their models."""
        self._known: Final[dict[Choice | None, Picked]] = {}
        """By the picker's choice, where that is all that decides."""
        self._routes: Final = {
            name: ProfileRoute(
                tuple(read_fields(Stage, stage_entry(use, config.stages)) for use in active(profile.request)),
                tuple(read_fields(Stage, response_entry(use, config.stages)) for use in active(profile.response)),
                any(use.service == _SELECTOR and not use.shadow for use in active(profile.request)),
                None if profile.slo is None else facts_of_level(profile.slo, name),
            )
            for name, profile in config.profiles.items()
        }
        self.before_model: Final = build_chains(config, "before_model")
        self.after_model: Final = build_chains(config, "after_model")
        """For profiles in which no model-selector runs."""
        self._aliases: Final = config.list_aliases()
        self._targets: Final = {
            name: target for name in config.model_names() if (target := config.find_target(name)) is not None
        }
        self._groups: Final[Mapping[str, Sequence[str]]] = {name: m.groups for name, m in config.models.items()}
        self._fallbacks: Final[Mapping[str, Sequence[str]]] = {
            name: model.fallbacks for name, model in config.models.items() if model.fallbacks
        }
        self._levels: Final = {
            name: facts_of_level(model.slo, name) for name, model in config.models.items() if model.slo is not None
        }
        self.has_levels: Final = bool(self._levels) or any(route.slo is not None for route in self._routes.values())
        """Whether any profile or model has a service level."""
        self._serving: Final = {
            name: Serving(target, self._block_tokens.get(target.pool or ""), self._alternatives(name, None))
            for name, target in self._targets.items()
        }

    def pick_profile(self, journey: Journey, pools: PoolStates, now_s: float) -> Picked:
        """Choose the profile. Raises PickError, and Refusal 500 when undecided without a default."""
        choice = self._picker.pick(journey, pools, now_s)
        return self._known.get(choice) or self._picked(choice, pools, now_s)

    def _picked(self, choice: Choice | None, pools: PoolStates, now_s: float) -> Picked:
        chosen = choice
        if choice is None:
            if self._default is None:
                raise Refusal(500, "No profile applies to this request.", type="server_error", code="no_profile")
            choice = Choice(self._default, "default")
        route = self._routes.get(choice.profile)
        if route is None:
            raise PickError(self._picker.name, f"it chose the profile {choice.profile!r}, which doesn't exist")
        old = tuple(pools.old(self._pools, now_s)) if self._picker.reads_pools else ()
        picked = Picked(choice.profile, route, f"{choice.profile}: {choice.note}", old)
        # A picker may write any note: a flood of them must not stay.
        if not self._picker.reads_pools and len(self._known) < _KNOWN:
            self._known[chosen] = picked
        return picked

    def promise_level(self, facts: RequestFacts, route: ProfileRoute, model: str) -> RequestFacts:
        """The facts with the service level of the sender's key, of the profile where that lacks an objective, and of
        the model where both do. The request's own objectives stay where no level has them, or a shorter one."""
        identity = facts.attributes.get(IDENTITY)
        of_key = identity.get(LEVEL) if isinstance(identity, dict) else None
        changes: FactsChanges = {}
        for level in (self._levels.get(model), route.slo, cast("FactsChanges | None", of_key)):
            if level is not None:
                changes.update(level)
        if not changes:
            return facts
        for own, name in ((facts.slo_ttft_ms, "slo_ttft_ms"), (facts.slo_itl_ms, "slo_itl_ms")):
            if own is not None:
                changes[name] = max(own, changes.get(name) or 0.0)
        return facts.changed(**changes)

    def find_serving(
        self, model: str, pools: PoolStates, asked: str | None = None, allowed: Sequence[str] | None = None
    ) -> Serving:
        """Who serves `model`: the configuration's word, or else that of live workers of open pools.
        `asked` is the name that the client knows it by; `allowed`: the models that it may use, None: all.

        Raises Refusal 403 and 404, or 503 while a pool whose engines name their models hasn't been heard of.
        """
        known = self._serving.get(model)
        if known is not None and allowed is None:
            return known
        pool = pools.serving(model, self._open_pools) if known is None else None
        if known is None and pool is None:
            raise self._unserved(asked or model, pools, allowed)
        if not self._allows(allowed, model):
            raise not_allowed(asked or model)
        alternatives = self._alternatives(model, allowed)
        if known is not None:
            return known._replace(alternatives=alternatives)
        lora = model if model in pools.get(pool or "").loras else None
        target = Target(model=model, pool=pool, lora=lora)
        return Serving(target, self._block_tokens.get(pool or ""), alternatives)

    def _alternatives(self, model: str, allowed: Sequence[str] | None) -> tuple[Target, ...]:
        names = self._fallbacks.get(model, ())
        return tuple([self._targets[name] for name in names if self._allows(allowed, name)])

    def _allows(self, allowed: Sequence[str] | None, model: str) -> bool:
        return allowed is None or may_use(allowed, model, self._groups.get(model, ()))

    def _unserved(self, model: str, pools: PoolStates, allowed: Sequence[str] | None) -> Refusal:
        for name in self._unlisted:
            if pools.get(name) is UNHEARD_OF:
                return Refusal(
                    503,
                    f"The models of pool '{name}' aren't known yet; try again shortly.",
                    type="server_error",
                    code="models_unknown",
                    retry_after_s=1.0,
                )
        known = list(dict.fromkeys((*self._targets, *self._aliases, *pools.models(self._open_pools))))
        if allowed is not None:
            # The error doesn't name models that the identity may not use.
            known = [
                name
                for name in known
                if self._allows(allowed, name) or (name in self._aliases and may_ask(allowed, name))
            ]
        if model.partition("/")[0] == AUTO:
            names = ", ".join(known[:NAMED]) or "none"
            return Refusal(
                404,
                f"No model is chosen for this request: its profile has no model-selector. Name a model: {names}.",
                code="model_not_found",
                param="model",
            )
        return unknown_model(model, known)
