"""The section of a pool."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pointsman_core.config.discovery import Discovery, EngineList, Kubernetes, check_names
from pointsman_core.config.engine_tls import EngineTls
from pointsman_core.config.flight import FlightSettings
from pointsman_core.config.section import ConfigError, Section
from pointsman_core.config.served_model import Dollars
from pointsman_core.config.tokenizer import Tokenizer
from pointsman_core.plugins import unknown


class EngineCost(Section):
    """What the engines of a pool cost, for `pointsman usage --engine-time`."""

    per_hour: Dollars
    """Dollars that one engine costs an hour while the gateway knows of it. 0 counts the time alone."""
    output_weight: float = Field(default=2.0, ge=0.01, le=100)
    """The weight of an output token, where a prompt token that wasn't cached has 1: answers that run at the same time
    divide it by these weights."""


class Pool(Section):
    """Engines of our own that serve the same models."""

    models: tuple[str, ...] = ()
    """Models and adapters; empty means those that the engines report."""
    only_listed: bool = False
    """Serve only `models`, whatever engines report. Without it, adapters that are loaded at run time are served, too,
    and one that is taken out of the list is served until its engines unload it."""
    loras: tuple[str, ...] = ()
    """Those of `models` that are LoRA adapters."""
    discovery: Discovery = "agents"
    """How engines are found. `agents`: each engine's worker-agent registers it. `static`: those listed in `engines`.
    `kubernetes`: pods of a cluster. `file`: those in a file, which is read again when it changes."""
    engines: EngineList = ()
    """Engines without an agent; the metrics-collector reads their load. With `discovery: static` these are all engines,
    with `agents` they are served beside those that register."""
    kubernetes: Kubernetes | None = None
    """With `discovery: kubernetes`: the pods that are engines."""
    file: str | None = None
    """With `discovery: file`: its path, on the metrics-collector's host. YAML or JSON with a list `engines`."""
    tls: EngineTls | None = None
    """How frontends, metrics-collectors and the Envoy of `up --envoy` connect to engines with https:// URLs. Agents
    have a setting of their own, POINTSMAN_ENGINE_TLS."""
    scheduling: str = "default"
    """Name of a scheduling policy."""
    cost: EngineCost | None = None
    """The price of its engines' time. Default: their time isn't counted."""
    block_tokens: int = Field(default=64, ge=1, le=4096)
    """Tokens in one prefix block."""
    flight: FlightSettings | None = None
    """Records every input of the scheduler's decisions, so that `pointsman replay` can make them again. Default: no
    record."""
    tokenizer: Tokenizer | None = None
    """Tokenizer of its models. Without one, text prompts are hashed as text and never match engines' KV events."""
    send_tokens: Literal["no", "prompt", "nvext"] = "no"
    """How the prompt's tokens are sent to engines, so that they needn't tokenize it again. `prompt`: as the prompt of
    completions. `nvext`: as `nvext.token_data` of chats and completions, for Dynamo's frontends. Needs `tokenizer`."""

    @model_validator(mode="after")
    def _discovery_has_what_it_needs(self) -> Self:
        listed = bool(self.engines) and self.discovery != "agents"
        given = {"static": listed, "kubernetes": self.kubernetes is not None, "file": self.file is not None}
        for kind, key in (("static", "engines"), ("kubernetes", "kubernetes"), ("file", "file")):
            if given[kind] != (self.discovery == kind):
                raise ValueError(
                    f"`{key}` can't be used with `discovery: {self.discovery}`"
                    if given[kind]
                    else f"`discovery: {kind}` needs `{key}`"
                )
        check_names(self.engines)
        return self

    @model_validator(mode="after")
    def _adapters_are_among_the_models(self) -> Self:
        # Without a list the models, adapters included, are the engines' to name.
        if self.models and not set(self.loras) <= set(self.models):
            strange = next(name for name in self.loras if name not in self.models)
            raise ConfigError([("loras", f"{unknown('model', strange, self.models)}; `models` has adapters too")])
        return self
