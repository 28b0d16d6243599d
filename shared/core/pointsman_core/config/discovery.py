"""How the endpoints of a pool are found, beside agents that register them."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from pointsman_core.config.section import ConfigError, FromTable, Section
from pointsman_core.engine_url import EngineUrl, check_metrics_url
from pointsman_core.worker_name import worker_name

Discovery = Literal["agents", "static", "kubernetes", "file"]
EngineKind = Annotated[str, FromTable("engine kinds")]


class StaticEngine(Section):
    """An engine that has no agent: the metrics-collector reads it."""

    url: EngineUrl
    """Base URL, for edges and for the metrics-collector: `http://`, `https://`, or `unix:/run/vllm.sock` for a socket
    that both have; a base path comes behind a colon, `unix:/run/vllm.sock:/base`."""
    name: str | None = None
    """Default: host and port of the URL, or the path of its socket with hyphens."""
    engine: EngineKind = "auto"
    """`auto` finds the kind from the names of its metrics. `opaque`: anything that serves the API but has no engine's
    metrics, such as the frontend of another system; its load is estimated from the requests that this gateway sent."""
    metrics_url: EngineUrl | None = None
    """URL of its metrics if not `/metrics` below `url`; Triton serves them on a port of their own."""
    health: str | None = Field(default=None, pattern=r"^/")
    """Path that answers 200 while an `opaque` endpoint takes requests. Default: `/health`, or `/v1/models` where
    `/health` answers 404."""
    role: Literal["both", "prefill", "decode", "encode"] = "both"
    """Its part of a request where prefill and decode run on different engines."""
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels for the filter `label-selector`."""

    @model_validator(mode="after")
    def _opaque_has_health_and_others_metrics(self) -> Self:
        _check_kind(self.engine, self.health, self.metrics_url, "metrics_url")
        check_metrics_url(self.url, self.metrics_url)
        return self

    @property
    def worker_name(self) -> str:
        """Its name in the pool."""
        return self.name or worker_name(self.url)


EngineList = tuple[
    Annotated[StaticEngine, BeforeValidator(lambda v: {"url": v} if isinstance(v, str) else v)], ...
]  # fmt: skip
"""Engines, each an URL or a whole entry."""


class Kubernetes(Section):
    """The pods that are endpoints of a pool: those of an InferencePool, or those with the labels of a selector."""

    inference_pool: str | None = None
    """Name of an InferencePool (`inference.networking.k8s.io/v1`): its selector and target ports are used, and the
    InferenceObjectives and InferenceModelRewrites that name it are honoured."""
    selector: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels of the pods, instead of an InferencePool."""
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(default=(), max_length=8)
    """With `selector`: ports at which a pod serves; each is an endpoint."""
    namespace: str | None = None
    """Default: that of the service account, or of the kubeconfig's context."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the pods' URLs."""
    engine: EngineKind = "auto"
    """As in `pools.*.engines[]`."""
    health: str | None = Field(default=None, pattern=r"^/")
    """As in `pools.*.engines[]`."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of a pod's metrics, if it differs from the one that serves requests."""
    role_label: str = "llm-d.ai/role"
    """Label of the pods with the value `prefill`, `decode`, `encode` or `both`; a pod without it does both."""

    @model_validator(mode="after")
    def _names_pods_in_one_way(self) -> Self:
        if (self.inference_pool is None) == (not self.selector):
            raise ValueError("name the pods either by `inference_pool` or by `selector` and `ports`")
        if bool(self.selector) != bool(self.ports):
            raise ValueError(
                "`selector` and `ports` must be given together; an InferencePool has its own `targetPorts`"
            )
        if len(set(self.ports)) < len(self.ports):
            raise ValueError("`ports` has a port twice")
        _check_kind(self.engine, self.health, self.metrics_port, "metrics_port")
        return self


class EndpointFile(Section):
    """The file that `discovery: file` watches."""

    engines: EngineList = ()
    """See `engines` of a pool."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        check_names(self.engines)
        return self


def load_endpoints(document: object) -> EndpointFile:
    """Check a parsed endpoint file. Raises ConfigError with every problem and its path."""
    try:
        return EndpointFile.model_validate({} if document is None else document)
    except ValidationError as error:
        raise ConfigError.from_validation(error) from error


def check_names(engines: Iterable[StaticEngine]) -> None:
    """Raise ValueError when two engines have the same name."""
    seen: set[str] = set()
    for engine in engines:
        if engine.worker_name in seen:
            raise ValueError(f"two engines are called {engine.worker_name!r}; give each a `name` of its own")
        seen.add(engine.worker_name)


def _check_kind(engine: EngineKind, health: str | None, metrics: object, metrics_key: str) -> None:
    if health is not None and engine != "opaque":
        raise ValueError("`health` is only for `engine: opaque`; the path of other engines is fixed")
    if metrics is not None and engine == "opaque":
        raise ValueError(f"an `opaque` endpoint has no metrics to read; leave `{metrics_key}` out")
