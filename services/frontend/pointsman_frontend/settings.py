"""Settings of the frontend process, beside those of every service."""

from typing import Self

from pydantic import Field, model_validator

from pointsman_edge.taking_in.request_headers import IDENTITY_HEADERS
from pointsman_edge.taking_in.trust import Network
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.configuring.urls import is_loopback


class FrontendSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment; lists are written as JSON."""

    host: str = "127.0.0.1"
    """Where clients are served."""
    port: int = Field(default=8080, ge=0, le=65535)
    """0 takes a free port, which the log names."""
    port_shared: bool = False
    """Let other processes of this user listen on the same port: the kernel deals new connections among them."""
    open_to_all: bool = False
    """Allow `host` to be reachable from other hosts."""

    trusted_proxies: tuple[Network, ...] = ()
    """Networks of peers whose `x-gateway-*`, `x-pointsman-*`, `x-forwarded-*` and identity headers are believed."""
    identity_headers: tuple[str, ...] = IDENTITY_HEADERS
    """Headers in which a proxy names its client; removed from all other peers' requests. `*` at the end: any ending."""
    forward_credentials: bool = False
    """Send the client's `authorization`, `x-api-key` and `api-key` on to engines, for engines that ask for keys."""
    own_worker: str | None = None
    """Name of the worker that this frontend stands beside: it gets the requests, and another only when it can't take
    one."""
    tell_endpoint: bool = False
    """Name the worker that answered in the header `x-pointsman-endpoint`."""

    batch_url: str | None = None
    """Where the service `batch` takes requests about files and batches; without it, their paths are unknown here."""

    max_head_bytes: int = Field(default=65536, ge=1024)
    """Longest request line and headers; longer ones get 431."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """How long the head of a request may take to arrive."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    """How long its body may take; then 408."""

    engine_idle_s: float = Field(default=4.0, gt=0)
    """Idle connections to engines are closed after this long: a second before vLLM's server would do it."""
    engine_idle_connections: int = Field(default=256, ge=0)
    """Idle connections kept to each engine."""

    @model_validator(mode="after")
    def _refuse_strangers(self) -> Self:
        if not self.open_to_all and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} is reachable from other hosts; listen on 127.0.0.1, or set "
                "POINTSMAN_OPEN_TO_ALL=true if every host that can reach it may use it"
            )
        return self
