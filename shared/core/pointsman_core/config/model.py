"""The configuration: pools, providers, models, the pipeline, profiles, selectors, scheduling policies."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from pointsman_contracts.parties import OWN_NAMES
from pointsman_contracts.services import ITINERARY, REVIEWERS, OrderRule
from pointsman_contracts.target import Target
from pointsman_core.config.caching import Cache, cache_problems
from pointsman_core.config.cascading import cascade_problems
from pointsman_core.config.edge import EdgeSettings
from pointsman_core.config.guarding import Guard, guard_problems, response_guard_problems
from pointsman_core.config.mirroring import Mirror, mirror_problems
from pointsman_core.config.order import request_order_problems, response_order_problems
from pointsman_core.config.pool import Pool
from pointsman_core.config.processing import Processors, ProcessorUse
from pointsman_core.config.provider import Provider
from pointsman_core.config.rewriting import ANY, Rewrite
from pointsman_core.config.scheduling import SchedulingPolicy
from pointsman_core.config.section import ConfigError, PluginUse, Problem, Section
from pointsman_core.config.selection import PickerUse, Selector
from pointsman_core.config.served_model import Model
from pointsman_core.config.service_level import ServiceLevel
from pointsman_core.config.stages import (
    STAGE_NAME,
    CustomStage,
    Itinerary,
    StageUse,
    request_problem,
    response_problem,
)
from pointsman_core.config.work_queue import QUEUE_NAME, WorkQueue
from pointsman_core.plugins import unknown

AUTO: Final = "auto"
"""A request for `auto`, or `auto/<group>`, leaves the model to a model-selector."""


Resume = Literal["off", "exact", "text"]


class Profile(Section):
    """The path of a request: ordered stages on the way in, and on the way back."""

    request: Itinerary = (StageUse(stage="scheduler"),)
    """Stages that a request passes, in this order; the scheduler is the last one."""
    response: Itinerary = ()
    """Stages that review the response, in this order."""
    processors: Processors = Processors()
    """Plugins of this profile that run inside the gateway's services."""
    static: Literal["allow", "deny"] = "allow"
    """Whether the edge may pick an endpoint by itself while the bus or the scheduler is missing."""
    resume: Resume = "exact"
    """Whether the frontend has another engine continue a stream whose engine broke off. `exact`: where the client can't
    tell, by the token ids that vLLM returns. `text`: otherwise also by the text that the client has, which the engine
    cuts into tokens anew. `off`: the stream ends with an error, and no engine is asked for token ids."""
    slo: ServiceLevel | None = None
    """How fast its answers should be."""
    resume_attempts: int = Field(default=2, ge=0, le=8)
    """Engines that may be asked to continue one stream."""

    @field_validator("resume", mode="before")
    @classmethod
    def _may_be_off(cls, value: object) -> object:
        # YAML reads `off` as false.
        return "off" if value is False else value


class Config(Section):
    """The whole file."""

    pools: dict[str, Pool] = Field(default_factory=dict[str, Pool])
    """Engines of your own, by the name of their pool."""
    providers: dict[str, Provider] = Field(default_factory=dict[str, Provider])
    """External services, by a name of your choice."""
    models: dict[str, Model] = Field(default_factory=dict[str, Model])
    """Models, by the name that requests use. A model that a pool lists needs an entry only for settings of its own."""
    rewrites: tuple[Rewrite, ...] = ()
    """Aliases of models, and splits of a name among several models."""
    objectives: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = Field(default_factory=dict[str, int])
    """Name → priority, for requests in which a trusted proxy sets this name as `x-pointsman-objective`. Other requests
    have priority 0."""
    preprocessing: tuple[ProcessorUse, ...] = ()
    """Request processors, for every request and in this order."""
    profile_picker: PickerUse = Field(default=PickerUse(), alias="profile-picker")
    """Chooses the profile of each request."""
    profiles: dict[str, Profile] = Field(default_factory=lambda: {"standard": Profile()})
    """The stages that a request and its response pass, by the name of the profile."""
    postprocessing: Itinerary = ()
    """Stages that every answer passes after those of its profile: errors, rejections and cached answers too."""
    processors: Processors = Processors()
    """Plugins for every profile: on the way in before those of the profile, on the way back after them."""
    selectors: dict[str, Selector] = Field(default_factory=dict[str, Selector])
    """Policies of the stage `model-selector`, which chooses a model for requests for `auto`: `model-selector/<name>` in
    an itinerary."""
    guards: dict[str, Guard] = Field(default_factory=dict[str, Guard])
    """Policies of the stage `guard`: `guard/<name>` in an itinerary; `guard` alone is `default`."""
    caches: dict[str, Cache] = Field(default_factory=dict[str, Cache])
    """Policies of the stage `semantic-cache`: `semantic-cache/<name>` in an itinerary; `semantic-cache` alone is
    `default`."""
    mirrors: dict[str, Mirror] = Field(default_factory=dict[str, Mirror])
    """Policies of the service `mirror`, which has other models answer copies of requests: `mirror/<name>` in an
    itinerary on the way back; `mirror` alone is `default`."""
    scheduling: dict[str, SchedulingPolicy] = Field(default_factory=lambda: {"default": SchedulingPolicy()})
    """Policies that choose an engine of a pool; a pool names its policy."""
    stages: dict[str, CustomStage] = Field(default_factory=dict[str, CustomStage])
    """Stages of your own, by the name that itineraries use."""
    queues: dict[str, WorkQueue] = Field(default_factory=dict[str, WorkQueue])
    """Work queues, by name: programs publish requests on `pm.work.queue.item.v1.<name>`, and the service `batch` runs
    them."""
    order_exceptions: tuple[OrderRule, ...] = ()
    """Rules about the order of stages that this file breaks on purpose."""
    edge: EdgeSettings = EdgeSettings()
    """Limits and times of the edges: the frontend and the epp-adapter."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        problems: list[Problem] = []

        def need(where: str, what: str, name: str | None, known: Mapping[str, object]) -> None:
            if name is not None and name not in known:
                problems.append((where, unknown(what, name, known)))

        problems += _blank_names(self)
        for name, pool in self.pools.items():
            need(f"pools.{name}.scheduling", "scheduling policy", pool.scheduling, self.scheduling)
        for name, model in self.models.items():
            need(f"models.{name}.pool", "pool", model.pool, self.pools)
            need(f"models.{name}.provider", "provider", model.provider, self.providers)
        names = dict.fromkeys(self.model_names())
        for name, model in self.models.items():
            for other in model.fallbacks:
                need(f"models.{name}.fallbacks", "model", other, names)
            if name in model.fallbacks:
                problems.append((f"models.{name}.fallbacks", f"{name!r} can't be its own fallback"))
        for name, selector in self.selectors.items():
            for model in selector.models:
                need(f"selectors.{name}.models", "model", model, names)
            if selector.cascade is not None:
                stages = (*ITINERARY, *self.stages)
                where = f"selectors.{name}.cascade"
                problems += cascade_problems(where, selector.cascade, selector.models, self.stages, stages)
        for name, mirror in self.mirrors.items():
            for position, model in enumerate(mirror.to):
                if not self._is_open_ended:
                    need(f"mirrors.{name}.to.{position}", "model", model, names)
        problems += self._rewrite_problems(names)
        processors = dict.fromkeys(use.name or use.use for use in self.preprocessing)
        for position, name in enumerate(self.edge.static_skips):
            need(f"edge.static_skips.{position}", "preprocessing plugin", name, processors)
        stages = dict.fromkeys((*ITINERARY, *self.stages))
        for name in self.stages:
            if name in OWN_NAMES:
                problems.append(
                    (
                        f"stages.{name}",
                        f"{name!r} is the name of a service or login of Pointsman; give the stage another one",
                    )
                )
            elif not STAGE_NAME.fullmatch(name):
                problems.append((f"stages.{name}", "a stage's name may have only letters, digits, '-' and '_'"))
        problems += [
            (f"queues.{name}", "a queue's name has 1 to 64 letters, digits, '-' and '_'")
            for name in self.queues
            if not QUEUE_NAME.fullmatch(name)
        ]
        for name, profile in self.profiles.items():
            for position, use in enumerate(profile.request):
                where = f"profiles.{name}.request.{position}"
                need(where, "stage", use.service, stages)
                if use.service == "model-selector":
                    need(where, "selector", use.policy or "", self.selectors)
                problem = request_problem(use)
                if problem is not None:
                    problems.append((where, problem))
            problems += cache_problems(f"profiles.{name}.request", profile.request, self.caches)
            back = (*profile.response, *self.postprocessing)
            problems += guard_problems(f"profiles.{name}", profile.request, back, self.guards)
            excepted = self.order_exceptions
            problems += request_order_problems(f"profiles.{name}.request", profile.request, excepted)
            problems += response_order_problems(
                f"profiles.{name}.response", profile.response, self.postprocessing, excepted
            )
        back_stages = dict.fromkeys((*stages, *REVIEWERS))
        ways_back = {f"profiles.{name}.response": profile.response for name, profile in self.profiles.items()}
        for way, itinerary in (ways_back | {"postprocessing": self.postprocessing}).items():
            problems += response_guard_problems(way, itinerary, self.guards)
            problems += cache_problems(way, itinerary, self.caches)
            problems += mirror_problems(way, itinerary, self.mirrors)
            for position, use in enumerate(itinerary):
                need(f"{way}.{position}", "stage", use.service, back_stages)
                problem = response_problem(use, self.stages) if use.service in back_stages else None
                if problem is not None:
                    problems.append((f"{way}.{position}", problem))
        if not self.profiles:
            problems.append(("profiles", "at least one profile is needed"))
        picker = self.profile_picker
        need("profile-picker.default", "profile", picker.default, self.profiles)
        if picker.on_undecided == "default" and picker.default is None:
            problems.append(("profile-picker.on_undecided", "`on_undecided: default` needs a `default` profile"))
        chosen = picker.default or picker.model_extra
        if picker.use == "single" and not chosen and len(self.profiles) > 1:
            problems.append(
                (
                    "profile-picker",
                    f"there are {len(self.profiles)} profiles ({', '.join(self.profiles)}); "
                    "several profiles need a picker, e.g. `use: rules`, or a `default` profile",
                )
            )
        if problems:
            raise ConfigError(problems)
        return self

    def _rewrite_problems(self, names: Mapping[str, object]) -> list[Problem]:
        problems: list[Problem] = []
        matched: dict[str, int] = {}
        for position, rewrite in enumerate(self.rewrites):
            problems += [
                (f"rewrites.{position}.match", f"rewrites.{matched[text]} matches {text!r} already")
                for text in rewrite.match
                if matched.setdefault(text, position) != position
            ]
            problems += [
                (f"rewrites.{position}.to", unknown("model", model, (*names, AUTO)))
                for model in rewrite.to
                if not (self._is_open_ended or model in names or model.partition("/")[0] == AUTO)
            ]
        return problems

    @property
    def _is_open_ended(self) -> bool:
        """Whether a pool lists no models: they are its engines' to name."""
        return any(not pool.models for pool in self.pools.values())

    def find_target(self, name: str) -> Target | None:
        """The pool or provider that serves `name`, and the model's name there; None for an unknown name. `base` is None
        for an adapter whose pool has several base models."""
        model = self.models.get(name)
        if model is not None:
            return self._there(model.pool, model.provider, model.served_as or name)
        pool = next((pool for pool, settings in self.pools.items() if name in settings.models), None)
        return None if pool is None else self._there(pool, None, name)

    def _there(self, pool: str | None, provider: str | None, name: str) -> Target:
        if pool is None or name not in self.pools[pool].loras:
            return Target(model=name, pool=pool, provider=provider)
        bases = [model for model in self.pools[pool].models if model not in self.pools[pool].loras]
        return Target(model=name, pool=pool, provider=provider, lora=name, base=bases[0] if len(bases) == 1 else None)

    def open_pools(self) -> tuple[str, ...]:
        """Pools that also serve what their engines report beside `models`."""
        return tuple(name for name, pool in self.pools.items() if not (pool.models and pool.only_listed))

    def model_names(self) -> list[str]:
        """Every model name that a request may use, in the file's order."""
        return list(dict.fromkeys((*self.models, *(name for pool in self.pools.values() for name in pool.models))))

    def list_aliases(self) -> list[str]:
        """Names beside those that a request may use because a rewrite is for them; patterns are not among them."""
        return [text for rewrite in self.rewrites for text in rewrite.match if ANY not in text]

    def response_processors(self, profile: str) -> tuple[PluginUse, ...]:
        """The response processors of a profile's answers, in their order; for an unknown profile the shared ones."""
        own = self.profiles[profile].processors.response if profile in self.profiles else ()
        return (*own, *self.processors.response)

    def runs_response_processor(self, kind: str) -> bool:
        """Whether the answers of any profile pass a response processor of this type."""
        return any(use.use == kind for profile in self.profiles for use in self.response_processors(profile))

    def ranks_by(self, scorer: str) -> bool:
        """Whether a selector has a scorer of this type."""
        rankings = (ranking for selector in self.selectors.values() for ranking in selector.rankings.values())
        return any(use.use == scorer for ranking in rankings for use in ranking.scorers)

    def policy_hash(self) -> str:
        """12 hexadecimal digits; equal for configurations that mean the same."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _blank_names(config: Config) -> list[Problem]:
    sections: Mapping[str, Iterable[str]] = {
        "pools": config.pools,
        "providers": config.providers,
        "models": config.models,
        "objectives": config.objectives,
        "profiles": config.profiles,
        "selectors": config.selectors,
        "guards": config.guards,
        "caches": config.caches,
        "scheduling": config.scheduling,
        **{f"pools.{name}.models": pool.models for name, pool in config.pools.items()},
    }
    words = "a name must not be empty or blank"
    return [(section, words) for section, names in sections.items() for name in names if not name.strip()]


def load(document: object) -> Config:
    """Check a parsed configuration document. Raises ConfigError with every problem and its path."""
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError.from_validation(error) from error
