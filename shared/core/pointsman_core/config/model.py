"""The configuration: pools, providers, models, the pipeline, profiles, selectors, scheduling policies."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from pointsman_core.config.caching import Cache, cache_problems
from pointsman_core.config.discovery import Discovery, EngineList, Kubernetes, check_names
from pointsman_core.config.guarding import Guard, guard_problems, response_guard_problems
from pointsman_core.config.order import OrderRule, request_order_problems, response_order_problems
from pointsman_core.config.processing import ProcessorUse
from pointsman_core.config.provider import Provider
from pointsman_core.config.rewriting import ANY, Rewrite
from pointsman_core.config.scheduling import SchedulingPolicy
from pointsman_core.config.section import ConfigError, Problem, Section
from pointsman_core.config.selection import PickerUse, Selector
from pointsman_core.config.stages import (
    OWN_NAMES,
    STAGE_NAME,
    STAGES,
    CustomStage,
    Itinerary,
    StageUse,
    request_problem,
    response_problem,
)
from pointsman_core.config.tokenizer import Tokenizer
from pointsman_core.plugins import unknown
from pointsman_core.units import ByteSize, PositiveDuration, PositiveSize

AUTO: Final = "auto"
"""A request for `auto`, or `auto/<group>`, leaves the model to a model-selector."""

Api = Literal["chat.completions", "completions", "responses", "messages", "embeddings"]
Feature = Literal["tools", "json", "logprobs", "reasoning", "vision", "audio", "video", "file"]


class Pool(Section):
    """Engines of our own that serve the same models."""

    models: tuple[str, ...] = ()
    """Models and adapters; empty means those that the engines report."""
    loras: tuple[str, ...] = ()
    """Those of `models` that are adapters."""
    discovery: Discovery = "agents"
    """`agents`: engines register themselves. `static`: those listed in `engines`. `kubernetes`: pods of a cluster.
    `file`: those that a file lists, which is watched."""
    engines: EngineList = ()
    kubernetes: Kubernetes | None = None
    """With `discovery: kubernetes`: which pods."""
    file: str | None = None
    """With `discovery: file`: its path, on the metrics-collector's host. YAML or JSON with a list `engines`."""
    scheduling: str = "default"
    """Name of a scheduling policy."""
    block_tokens: int = Field(default=64, ge=1, le=4096)
    """Tokens in one prefix block."""
    tokenizer: Tokenizer | None = None
    """Of its models; without one, prompts that are text are hashed as text and never match engines' KV events."""
    send_tokens: Literal["no", "prompt", "nvext"] = "no"
    """How engines get the tokens that were counted here, so as not to count them again. `prompt`: as the prompt of
    completions. `nvext`: as `nvext.token_data` of chats and completions, for Dynamo's frontends. Needs `tokenizer`."""

    @model_validator(mode="after")
    def _discovery_has_what_it_needs(self) -> Self:
        given = {"static": bool(self.engines), "kubernetes": self.kubernetes is not None, "file": self.file is not None}
        for kind, key in (("static", "engines"), ("kubernetes", "kubernetes"), ("file", "file")):
            if given[kind] != (self.discovery == kind):
                raise ValueError(f"`{key}` and `discovery: {kind}` belong together")
        check_names(self.engines)
        return self

    @model_validator(mode="after")
    def _adapters_are_among_the_models(self) -> Self:
        # Without a list the models, adapters included, are the engines' to name.
        if self.models and not set(self.loras) <= set(self.models):
            strange = next(name for name in self.loras if name not in self.models)
            raise ConfigError([("loras", f"{unknown('model', strange, self.models)}; `models` has adapters too")])
        return self


class Cost(Section):
    """Price in dollars per million tokens."""

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Of prompt tokens that came from a cache; default: `input`."""


class Model(Section):
    """A model that requests may name or a selector may choose."""

    pool: str | None = None
    provider: str | None = None
    served_as: str | None = None
    """Name at the pool or provider; default: this model's own name."""
    cost: Cost = Cost()
    quality: float = Field(default=0.5, ge=0, le=1)
    context: int | None = Field(default=None, ge=1)
    """Longest sequence in tokens."""
    features: tuple[Feature, ...] = ("tools", "json", "logprobs", "reasoning")
    """What it can do beyond text: those, and `vision`, `audio`, `video`, `file`."""
    apis: tuple[Api, ...] = ("chat.completions", "completions", "responses", "messages")
    """APIs that it answers; a model for vectors says `[embeddings]`."""
    strengths: str = ""
    """What it is good at, in words, for the scorer `semantic-match`: `programming, debugging, code review`."""
    groups: tuple[str, ...] = ()
    """Requests for `auto/<group>` choose among the models of that group."""
    tokenizer: Tokenizer | None = None
    """Its own, in a pool of several base models; default: the pool's."""
    fallbacks: tuple[str, ...] = ()
    """Models that serve requests for this one, in this order, when it fails before the first byte. A model that a
    selector chose has the selector's `fallbacks` instead."""

    @model_validator(mode="after")
    def _is_served_by_one(self) -> Self:
        if (self.pool is None) == (self.provider is None):
            raise ValueError("a model has either a `pool` or a `provider`")
        return self


class Profile(Section):
    """What happens to a request: ordered stages on the way in, and on the way back."""

    request: Itinerary = (StageUse(stage="scheduler"),)
    response: Itinerary = ()
    static: Literal["allow", "deny"] = "allow"
    """Whether the edge may pick an endpoint by itself while the bus or the scheduler is missing."""


class Edge(Section):
    """Limits that the edges keep."""

    max_body: PositiveSize = 4 * 2**20
    """Larger bodies get 413. Must leave room for headers within the bus's `max_payload`."""
    max_held_answer: ByteSize = 32 * 2**20
    """How much of an answer is held for stages that the client waits for; one that needs more follows their `on_error`,
    with 502 where that is `deny`."""
    request_timeout: PositiveDuration = 600.0
    """From accepting a request to its last byte; then 504."""
    decision_timeout: PositiveDuration = 30.0
    """How long a decision may take, waiting in flow control included; then 503."""
    hop_budget: PositiveDuration = 0.6
    """How long the edge waits for an answer from the stages before it re-sends the request once."""
    first_byte_timeout: PositiveDuration = 300.0
    """How long one endpoint may take to its first byte; then the next one is tried."""
    connect_timeout: PositiveDuration = 1.0
    """How long connecting to an endpoint may take; then the next one is tried."""
    stream_idle_timeout: PositiveDuration = 60.0
    """How long an answer may pause between two bytes; then it is cut off with an error."""
    static_skips: tuple[str, ...] = ()
    """Preprocessing plugins, by instance name, that may be skipped while the edge picks an endpoint by itself. With
    any other one configured it answers 503 then."""


class Served(NamedTuple):
    """Who serves a model that a request may name."""

    pool: str | None
    provider: str | None
    name: str
    """The model's name there."""
    lora: str | None
    """The adapter, when the model is one."""
    base: str | None = None
    """The adapter's base model; None when its pool has several."""


class Config(Section):
    """The whole file."""

    pools: dict[str, Pool] = Field(default_factory=dict[str, Pool])
    providers: dict[str, Provider] = Field(default_factory=dict[str, Provider])
    models: dict[str, Model] = Field(default_factory=dict[str, Model])
    rewrites: tuple[Rewrite, ...] = ()
    objectives: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = Field(default_factory=dict[str, int])
    """Priority by the name that a trusted peer's objective header has; others have 0."""
    preprocessing: tuple[ProcessorUse, ...] = ()
    """Request processors, for every request and in this order."""
    profile_picker: PickerUse = Field(default=PickerUse(), alias="profile-picker")
    profiles: dict[str, Profile] = Field(default_factory=lambda: {"standard": Profile()})
    postprocessing: Itinerary = ()
    """Stages that every answer passes after those of its profile: errors, rejections and cached answers too."""
    selectors: dict[str, Selector] = Field(default_factory=dict[str, Selector])
    guards: dict[str, Guard] = Field(default_factory=dict[str, Guard])
    """Policies of the stage `guard`: `guard/<name>` in an itinerary; `guard` alone is `default`."""
    caches: dict[str, Cache] = Field(default_factory=dict[str, Cache])
    """Policies of the stage `semantic-cache`: `semantic-cache/<name>` in an itinerary; `semantic-cache` alone is
    `default`."""
    scheduling: dict[str, SchedulingPolicy] = Field(default_factory=lambda: {"default": SchedulingPolicy()})
    stages: dict[str, CustomStage] = Field(default_factory=dict[str, CustomStage])
    order_exceptions: tuple[OrderRule, ...] = ()
    """Rules about the order of stages that this file breaks on purpose."""
    edge: Edge = Edge()

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        problems: list[Problem] = []

        def need(where: str, what: str, name: str | None, known: Mapping[str, object]) -> None:
            if name is not None and name not in known:
                problems.append((where, unknown(what, name, known)))

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
                problems.append((f"models.{name}.fallbacks", f"{name!r} itself can't serve what it failed to"))
        for name, selector in self.selectors.items():
            for model in selector.models:
                need(f"selectors.{name}.models", "model", model, names)
        problems += self._rewrite_problems(names)
        processors = dict.fromkeys(use.name or use.use for use in self.preprocessing)
        for position, name in enumerate(self.edge.static_skips):
            need(f"edge.static_skips.{position}", "preprocessing plugin", name, processors)
        stages = dict.fromkeys((*STAGES, *self.stages))
        for name in self.stages:
            if name in OWN_NAMES:
                problems.append(
                    (f"stages.{name}", f"{name!r} is a name of this project's own; give the stage another one")
                )
            elif not STAGE_NAME.fullmatch(name):
                problems.append((f"stages.{name}", "a stage's name has letters, digits, '-' and '_' only"))
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
        ways_back = {f"profiles.{name}.response": profile.response for name, profile in self.profiles.items()}
        for way, itinerary in (ways_back | {"postprocessing": self.postprocessing}).items():
            problems += response_guard_problems(way, itinerary, self.guards)
            problems += cache_problems(way, itinerary, self.caches)
            for position, use in enumerate(itinerary):
                need(f"{way}.{position}", "stage", use.service, stages)
                problem = response_problem(use, self.stages) if use.service in stages else None
                if problem is not None:
                    problems.append((f"{way}.{position}", problem))
        if not self.profiles:
            problems.append(("profiles", "at least one profile is needed"))
        picker = self.profile_picker
        need("profile-picker.default", "profile", picker.default, self.profiles)
        if picker.on_undecided == "default" and picker.default is None:
            problems.append(("profile-picker.on_undecided", "`default` needs a `default` profile"))
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
        # The models of a pool that lists none are its engines' to name.
        open_ended = any(not pool.models for pool in self.pools.values())
        for position, rewrite in enumerate(self.rewrites):
            problems += [
                (f"rewrites.{position}.match", f"rewrites.{matched[text]} is for {text!r} already")
                for text in rewrite.match
                if matched.setdefault(text, position) != position
            ]
            problems += [
                (f"rewrites.{position}.to", unknown("model", model, (*names, AUTO)))
                for model in rewrite.to
                if not (open_ended or model in names or model.partition("/")[0] == AUTO)
            ]
        return problems

    def served(self, name: str) -> "Served | None":
        """Who serves `name`; None when nobody is configured to."""
        model = self.models.get(name)
        if model is not None:
            return self._there(model.pool, model.provider, model.served_as or name)
        pool = next((pool for pool, settings in self.pools.items() if name in settings.models), None)
        return None if pool is None else self._there(pool, None, name)

    def _there(self, pool: str | None, provider: str | None, name: str) -> Served:
        if pool is None or name not in self.pools[pool].loras:
            return Served(pool, provider, name, None)
        bases = [model for model in self.pools[pool].models if model not in self.pools[pool].loras]
        return Served(pool, provider, name, name, bases[0] if len(bases) == 1 else None)

    def model_names(self) -> list[str]:
        """Every model name that a request may use, in the file's order."""
        return list(dict.fromkeys((*self.models, *(name for pool in self.pools.values() for name in pool.models))))

    def aliases(self) -> list[str]:
        """Names beside those that a request may use because a rewrite is for them; patterns are not among them."""
        return [text for rewrite in self.rewrites for text in rewrite.match if ANY not in text]

    def ranks_by(self, scorer: str) -> bool:
        """Whether a selector has a scorer of this type."""
        rankings = (ranking for selector in self.selectors.values() for ranking in selector.rankings.values())
        return any(use.use == scorer for ranking in rankings for use in ranking.scorers)

    def policy_hash(self) -> str:
        """12 hexadecimal digits; equal for configurations that mean the same."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load(document: object) -> Config:
    """Check a parsed configuration document. Raises ConfigError with every problem and its path."""
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError.of(error) from error
