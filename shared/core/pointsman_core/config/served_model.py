"""The section of a model that requests may name: who serves it, what it can do and what it costs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pointsman_core.config.section import Section
from pointsman_core.config.tokenizer import Tokenizer

Api = Literal["chat.completions", "completions", "responses", "messages", "embeddings"]
Feature = Literal["tools", "json", "logprobs", "reasoning", "vision", "audio", "video", "file"]


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
