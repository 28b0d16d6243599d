"""The section of a model that requests may name: its pools or providers, features and prices."""

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, PlainSerializer, model_validator

from pointsman_core.config.section import Section
from pointsman_core.config.service_level import ServiceLevel
from pointsman_core.config.tokenizer import Tokenizer

Api = Literal[
    "chat.completions", "completions", "responses", "messages", "embeddings", "rerank", "score", "classify", "pooling",
    "encode", "moderations", "tokenize", "detokenize", "messages.count_tokens", "audio.transcriptions",
    "audio.translations", "audio.speech", "images.generations", "images.edits", "generate",
    "infer", "infer.generate", "infer.generate_stream",
]  # fmt: skip
Feature = Literal["tools", "json", "logprobs", "reasoning", "vision", "audio", "video", "file"]


Dollars = Annotated[
    Decimal,
    Field(ge=0, le=10**6, decimal_places=9),
    # The configuration's hash is of numbers.
    PlainSerializer(float, when_used="json"),
]
"""An exact amount: a number in a document counts as it is written."""


Tier = Annotated[Decimal, Field(ge=0, le=100, decimal_places=6), PlainSerializer(float, when_used="json")]


class Cost(Section):
    """Price in dollars per million tokens. Default: the price list of this version, for a model of a provider that has
    one."""

    input: Dollars = Decimal(0)
    """Price of prompt tokens."""
    output: Dollars = Decimal(0)
    """Price of tokens of the answer."""
    cached: Dollars | None = None
    """Price of prompt tokens that came from a cache; default: `input`."""
    cache_write: Dollars | None = None
    """Price of prompt tokens that a provider's cache keeps from now on. Default: 1.25 times `input`, as at Anthropic
    and Bedrock; `input` for models of pools."""
    cache_write_1h: Dollars | None = None
    """The same where the cache keeps them for an hour. Default: twice `input`; `input` for models of pools."""
    audio_input: Dollars | None = None
    """Price of prompt tokens of sounds; default: `input`."""
    audio_output: Dollars | None = None
    """Price of tokens of the answer that are sounds; default: `output`."""
    image_input: Dollars | None = None
    """Price of prompt tokens of images; default: `input`."""
    image_output: Dollars | None = None
    """Price of tokens of the answer that are images; default: `output`."""
    reasoning: Dollars | None = None
    """Price of tokens of the answer that are reasoning; default: `output`."""
    tiers: dict[str, Tier] = Field(default_factory=dict[str, Tier])
    """Service tier that a provider reports (`batch`, `flex`, `priority`) → factor for all prices, e.g. 0.5."""


class Model(Section):
    """A model that requests may name or a selector may choose."""

    pool: str | None = None
    """The pool that serves it; a model has either a `pool` or a `provider`."""
    provider: str | None = None
    """The provider that serves it."""
    served_as: str | None = None
    """Name at the pool or provider; default: this model's own name."""
    cost: Cost = Cost()
    """Its prices, for selectors, budgets and the usage ledger."""
    quality: float = Field(default=0.5, ge=0, le=1)
    """Your rating from 0 to 1, for the scorer `quality`."""
    context: int | None = Field(default=None, ge=1)
    """Longest sequence in tokens."""
    features: tuple[Feature, ...] = ("tools", "json", "logprobs", "reasoning")
    """Features beyond text that it supports. A selector skips the model for a request that needs another one."""
    apis: tuple[Api, ...] = ("chat.completions", "completions", "responses", "messages")
    """APIs that it serves, e.g. `[embeddings]` for a model that makes vectors."""
    thinking_end: str | None = Field(default=None, min_length=1)
    """The mark behind its thoughts, e.g. `</think>`, where engines split them off the answer: a stream that breaks off
    within them is continued only if it is set."""
    strengths: str = ""
    """Its strengths in words, for the scorer `semantic-match`: `programming, debugging, code review`."""
    examples: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Prompts that it is good at, for the scorer `semantic-match`."""
    groups: tuple[str, ...] = ()
    """Requests for `auto/<group>` choose among the models of that group."""
    tokenizer: Tokenizer | None = None
    """Its own tokenizer, in a pool of several base models; default: the pool's."""
    slo: ServiceLevel | None = None
    """How fast its answers should be, for requests that name it and have no level of their own or of their profile."""
    fallbacks: tuple[str, ...] = ()
    """Models that serve requests for this one, in this order, when it fails before the first byte. A model that a
    selector chose has the selector's `fallbacks` instead."""

    @model_validator(mode="after")
    def _is_served_by_one(self) -> Self:
        if (self.pool is None) == (self.provider is None):
            raise ValueError("a model has either a `pool` or a `provider`")
        return self
