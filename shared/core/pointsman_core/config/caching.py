"""Policies of the semantic-cache."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pointsman_core.config.section import Problem, Section
from pointsman_core.config.stages import StageUse
from pointsman_core.plugins import unknown
from pointsman_core.references import HttpUrl, SecretReference
from pointsman_core.units import PositiveDuration, PositiveSize
from pointsman_core.url_addresses import check_url

CACHE: Final = "semantic-cache"
"""The stage."""
DEFAULT_CACHE: Final = "default"
"""The policy of an itinerary's `semantic-cache` without a name; it needs no entry in `caches`."""

_NEEDS: Final = {"lexical": (), "onnx": ("directory",), "endpoint": ("url", "model")}
WORDS: Final = "words"
"""The gate that needs no model."""
_BELONGS: Final = {"directory": "onnx", "label": "onnx", "url": "endpoint", "credential": "endpoint"}
_GATE_NEEDS: Final = {"onnx": "directory", "endpoint": "url"}


def _use_of(value: object) -> object:
    return {"use": value} if isinstance(value, str) else value


class Embeddings(Section):
    """Measures how similar two texts are: questions in a cache, a prompt and examples in a model selector."""

    use: Literal["lexical", "onnx", "endpoint"]
    """`lexical`: words that both have; no model, and it finds few paraphrases. `onnx`: a model in a folder. `endpoint`:
    a service with OpenAI's `/v1/embeddings`."""
    directory: str | None = None
    """Folder with `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json`, on every machine of the service; `onnx`."""
    url: HttpUrl | None = None
    """Ends in `/v1`; `endpoint`."""
    model: str | None = None
    """`endpoint`."""
    credential: SecretReference | None = None
    """A reference, never a secret: `env:NAME` or `file:PATH`, read by the service that embeds; `endpoint`."""
    private: bool = False
    """`url` may lead to a private address; `endpoint`."""
    timeout: PositiveDuration = 0.25
    """After this the cache counts the question as new (`endpoint`), and a model selector compares words (any)."""
    threshold: float | None = Field(default=None, gt=0, le=1)
    """Least cosine of two questions in a cache. Default: the embedder's own, 0.8 for `onnx` and `endpoint`, 0.75 for
    `lexical`."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        for name in ("directory", "url", "model", "credential"):
            needed = name in _NEEDS[self.use]
            given = getattr(self, name) is not None
            if needed and not given:
                raise ValueError(f"`use: {self.use}` needs `{name}`")
            if given and not needed and not (name == "credential" and self.use == "endpoint"):
                raise ValueError(f"`{name}` isn't for `use: {self.use}`")
        if self.url is not None:
            check_url(self.url, private=self.private)
        return self


class GateSettings(Section):
    """Decides whether two questions that `embeddings` finds alike have the same answer."""

    use: Literal["words", "onnx", "endpoint"] = "words"
    """`words`: their content words agree in order, with the small words and numbers that change an answer. `onnx`: a
    cross-encoder, or a classifier of natural language inference, in a folder; the words needn't agree then.
    `endpoint`: a service with `/rerank` as text-embeddings-inference has it. Both models need `store: memory`."""
    directory: str | None = None
    """Folder with `model.onnx` (or `onnx/model.onnx`), `tokenizer.json` and `config.json`, on every machine of the
    service; `onnx`."""
    label: str | None = None
    """The model's label for texts that mean the same, where it has several. Default: `entailment`; `onnx`."""
    url: HttpUrl | None = None
    """Without `/rerank`; `endpoint`."""
    credential: SecretReference | None = None
    """A reference, never a secret: `env:NAME` or `file:PATH`, read by the semantic-cache; `endpoint`."""
    private: bool = False
    """`url` may lead to a private address; `endpoint`."""
    timeout: PositiveDuration = 0.25
    """Timeout of all comparisons of one request together; after it the question counts as new."""
    threshold: float = Field(default=0.9, gt=0, le=1)
    """Least likelihood that two questions mean the same, the model asked in both orders."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        needed = _GATE_NEEDS.get(self.use)
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"`use: {self.use}` needs `{needed}`")
        for name, use in _BELONGS.items():
            if use != self.use and getattr(self, name) is not None:
                raise ValueError(f"`{name}` isn't for `use: {self.use}`")
        if self.url is not None:
            check_url(self.url, private=self.private)
        return self


class Store(Section):
    """The store of answers."""

    use: Literal["memory", "postgres", "redis"] = "memory"
    """`memory`: in each process of the service, for itself. `postgres`: a PostgreSQL with pgvector, `redis`: a Redis or
    Valkey, for all of them."""
    url: SecretReference | None = None
    """URL of the database, by reference because it has a password: `env:NAME` or `file:PATH`; not for `memory`."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if (self.use != "memory") != (self.url is not None):
            raise ValueError(f"`use: {self.use}` needs `url`" if self.url is None else "`url` isn't for `use: memory`")
        return self


class Cache(Section):
    """One policy: which answers are reused, for which clients, and for how long."""

    per: tuple[Literal["tenant", "subject"], ...] = ("tenant",)
    """Which requests share answers: those of the same tenant, or of the same tenant and subject."""
    ttl: PositiveDuration = 3600.0
    """How long an answer is reused."""
    max_bytes: PositiveSize = 256 * 2**20
    """Size of all answers in this cache, for each process in `store: memory`; the least recently used go first."""
    max_answer: PositiveSize = 2**20
    """Size of an answer; larger ones aren't kept."""
    embeddings: Annotated[Embeddings | None, BeforeValidator(_use_of)] = None
    """Finds answers to questions that mean the same. None: only the very same request is answered again."""
    gate: Annotated[GateSettings, BeforeValidator(_use_of)] = GateSettings()
    """Decides which of the questions that `embeddings` find alike have the same answer."""
    max_temperature: float | None = Field(default=None, ge=0)
    """Requests with a higher `temperature`, or with none, want another answer each time: they pass."""
    tool_calls: bool = False
    """Keep answers that call tools, too."""
    cut_short: bool = False
    """Keep answers that ended at the request's own limit of tokens, too."""
    count_tokens: bool = False
    """Charge the tokens of the first answer for each further one."""
    single_flight: bool = True
    """Among identical requests at the same time, one asks a model and the others wait for its answer. No effect while
    several processes of the service run."""
    wait: PositiveDuration = 5.0
    """How long the others wait at most, never longer than half of the edge's `decision_timeout`; then each asks a model
    itself."""
    store: Annotated[Store, BeforeValidator(_use_of)] = Store()
    """Where answers are kept."""

    @field_validator("per")
    @classmethod
    def _starts_with_the_tenant(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value not in (("tenant",), ("tenant", "subject")):
            raise ValueError("write `[tenant]` or `[tenant, subject]`: answers are never shared between tenants")
        return value

    @model_validator(mode="after")
    def _one_answer_fits(self) -> Self:
        if self.max_answer > self.max_bytes:
            raise ValueError(f"`max_answer` ({self.max_answer}) is more than `max_bytes` ({self.max_bytes})")
        return self

    @model_validator(mode="after")
    def _gate_has_what_it_compares(self) -> Self:
        if self.gate.use == WORDS:
            return self
        if self.embeddings is None:
            raise ValueError("`gate` needs `embeddings`, which find the questions that it compares")
        if self.store.use != "memory":
            raise ValueError(
                f"`gate: {self.gate.use}` needs `store: memory`: it compares texts of questions, which no database gets"
            )
        return self


def cache_problems(where: str, stages: Sequence[StageUse], caches: Mapping[str, Cache]) -> Iterator[Problem]:
    """Caches that an itinerary names and that don't exist; `where` is the path of the list."""
    for position, use in enumerate(stages):
        name = use.policy or DEFAULT_CACHE
        if use.service == CACHE and name not in (*caches, DEFAULT_CACHE):
            yield f"{where}.{position}", unknown("cache", name, (*caches, DEFAULT_CACHE))
