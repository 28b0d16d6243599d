"""Settings of the worker-agent."""

from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from pointsman_core.config import EngineTls
from pointsman_core.engine_url import check_metrics_url, unix_address
from pointsman_core.plugins import unknown
from pointsman_core.worker_name import worker_name
from pointsman_engines.dialect import AUTO, ENGINES
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S
from pointsman_engines.pace import ReadingPace
from pointsman_engines.report import ReportedWorker
from pointsman_engines.speaker import EngineAccess
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.configuring.urls import has_host
from pointsman_worker_agent.domain.kv_endpoints import KvEndpoints


class WorkerAgentSettings(ServiceSettings):
    """An agent's settings: its engine and the pool that it serves are required. The others have defaults."""

    engine_url: str
    """Base URL by which the agent reaches its engine, e.g. `http://127.0.0.1:8000` or `unix:/run/vllm.sock`."""
    pool: str = Field(min_length=1)
    """Pool that the engine serves."""
    worker: str = Field(default="", max_length=200)
    """Name of the engine, unique within the pool; default: host and port of the URL that edges use."""
    advertise_url: str | None = None
    """Base URL by which edges reach the engine, when it isn't `engine_url`."""

    engine: str = AUTO
    """Kind of the engine; `auto` recognizes it by the names of its metrics."""
    metrics_url: str | None = None
    """URL of the engine's metrics if not `/metrics` below `engine_url`; Triton has a port for them."""
    engine_api_key: SecretStr | None = None
    """Key that the engine asks for on `/v1`."""
    engine_tls: EngineTls | None = None
    """How to connect to an https:// engine: as `pools.*.tls` of the configuration; a JSON object in the environment."""
    models: tuple[str, ...] = ()
    """Names of the models that it serves, when `/v1/models` names none; a JSON list in the environment."""
    role: Literal["both", "prefill", "decode", "encode"] = "both"
    """Part that the engine has in a disaggregated pool."""
    ranks: int | None = Field(default=None, ge=1, le=1024)
    """Data-parallel ranks of the engine at this URL: each is a worker of its own, `<worker>-rank-<n>`. Default: as many
    as the engine's metrics name. 1: the engine is one worker and chooses among its ranks."""
    rank_field: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Member of a request's body that asks for the rank, e.g. `data_parallel_rank`, for an engine that doesn't read the
    header `x-data-parallel-rank`."""
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Anything that a filter may look at, e.g. rack or GPU type; a JSON object in the environment."""

    busy_interval_s: float = Field(default=0.05, ge=0.01, le=1)
    """Time between two readings of the engine while they differ."""
    idle_interval_s: float = Field(default=0.2, ge=0.01, le=1)
    """Longest time between two readings."""
    answer_timeout_s: float = Field(default=ANSWER_TIMEOUT_S, gt=0, le=10)
    """No answer of the engine is late before this time; a page that usually takes longer has more."""

    kv_events: str | None = None
    """ZeroMQ endpoint of the engine's KV events (vLLM's `--kv-events-config`), e.g. `tcp://127.0.0.1:5557`; None when
    it publishes none."""
    kv_replay: str | None = None
    """Endpoint that sends them again on request, e.g. `tcp://127.0.0.1:5558`."""
    kv_topic: str = ""
    """Prefix of the topics to subscribe to; empty for all."""
    kv_ranks: int = Field(default=1, ge=1, le=256)
    """Publishers of an engine that is one worker (`ranks: 1`); each has the port after the last one's."""
    kv_block_tokens: int = Field(default=64, ge=1, le=4096)
    """Tokens in a prefix block: `block_tokens` of the pool. A multiple of the engine's block size."""

    kv_store: str = Field(default="", max_length=64, pattern=r"^[a-z0-9._-]*$")
    """Name of the shared store that the engine offloads blocks to, e.g. of LMCache or Mooncake: all engines of the pool
    whose agents name the same one have what any of them put there. Empty: a store counts for its engine alone."""
    kv_store_media: tuple[str, ...] = ()
    """Media of KV events that mean the shared store besides `EXTERNAL` and whatever is `REMOTE`, e.g. `["cpu"]` for
    Mooncake's store under vLLM; a JSON list in the environment."""

    pd_sidecar: str | None = None
    """`host:port` at which the agent is the sidecar of an engine that answers requests whose prompt another one
    computes; also the option `--pd-sidecar`. Edges reach the engine there: it is the address of `advertise_url`."""
    pd_prefillers: tuple[str, ...] = ()
    """Hosts that requests may name as their prefiller; a JSON list in the environment, empty for any."""
    pd_bootstrap_port: int | None = Field(default=None, ge=1, le=65535)
    """Port at which SGLang's prefillers are found (`--disaggregation-bootstrap-port`); None for its default, 8998."""
    pd_prefill_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that the prefiller may take before the engine computes the prompt itself."""

    drain_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that the engine's open requests may take after SIGTERM before its registration is removed."""

    @field_validator("engine")
    @classmethod
    def _refuse_an_unknown_engine(cls, engine: str) -> str:
        if engine not in (AUTO, *ENGINES):
            raise ValueError(unknown("kind of engine", engine, (AUTO, *ENGINES)))
        return engine

    @field_validator("engine_url", "advertise_url", "metrics_url")
    @classmethod
    def _is_an_engine(cls, value: str | None) -> str | None:
        if value is None or unix_address(value) is not None:
            return value
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r}: the URL of an engine must begin with http://, https:// or unix:")
        if not has_host(value):
            raise ValueError(f"{value!r}: no host; e.g. http://127.0.0.1:8000")
        return value

    @field_validator("kv_events", "kv_replay")
    @classmethod
    def _is_zeromq(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("tcp://", "ipc://")):
            raise ValueError(f"{value!r}: a ZeroMQ endpoint must begin with tcp:// or ipc://")
        return value

    @field_validator("pd_sidecar")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not value.rpartition(":")[2].isdecimal():
            raise ValueError(f"{value!r}: an address to listen at is host:port, e.g. 0.0.0.0:8000")
        return value

    @model_validator(mode="after")
    def _metrics_are_where_the_engine_is(self) -> Self:
        check_metrics_url(self.engine_url, self.metrics_url)
        return self

    @model_validator(mode="after")
    def _sidecar_is_advertised(self) -> Self:
        if self.pd_sidecar is not None and self.advertise_url is None:
            raise ValueError("advertise_url: pd_sidecar needs it, because edges must reach the sidecar, not the engine")
        return self

    @model_validator(mode="after")
    def _idle_is_slower_than_busy(self) -> Self:
        if self.idle_interval_s < self.busy_interval_s:
            raise ValueError("idle_interval_s: must not be below busy_interval_s")
        return self

    def described(self) -> ReportedWorker:
        """The engine under its name in the pool."""
        url = (self.advertise_url or self.engine_url).rstrip("/")
        return ReportedWorker(
            pool=self.pool,
            worker=self.worker or worker_name(url),
            url=url,
            role=self.role,
            labels=self.labels,
            models=self.models,
            kv_block_tokens=None if self.kv_events is None else self.kv_block_tokens,
            rank_field=self.rank_field,
        )

    def kv_endpoints(self) -> KvEndpoints | None:
        """The endpoints of the engine's KV events; None when it publishes none."""
        return None if self.kv_events is None else KvEndpoints(self.kv_events, self.kv_replay, self.kv_topic)

    def engine_access(self) -> EngineAccess:
        """Address, API key and TLS settings of the engine."""
        return EngineAccess(
            url=self.engine_url,
            metrics_url=self.metrics_url,
            api_key=self.engine_api_key.get_secret_value() if self.engine_api_key else None,
            engine=None if self.engine == AUTO else self.engine,
            pace=ReadingPace(busy_s=self.busy_interval_s, idle_s=self.idle_interval_s),
            answer_timeout_s=self.answer_timeout_s,
            tls=self.engine_tls,
            ranks=self.ranks,
        )
