"""Settings of the epp-adapter process, beside those of every service."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from pointsman_edge.taking_in.request_headers import IDENTITY_HEADERS
from pointsman_edge.taking_in.trust import Network
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.configuring.urls import is_loopback


class EppAdapterSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment; lists are written as JSON."""

    host: str = "127.0.0.1"
    """Where Envoy finds the external processor and gRPC health."""
    port: int = Field(default=9002, ge=0, le=65535)
    """0 takes a free port, which the log names."""
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """Port for gRPC health alone, without TLS, for probes that speak none; it is on `port` too. None: only there."""
    open_to_all: bool = False
    """Allow `host` to be reachable from other hosts without a client certificate."""
    tls_cert: Path | None = None
    """Certificate chain in PEM; a renewed file is taken up without a restart."""
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """Ask Envoy for a certificate of this authority."""

    mode: Literal["endpoint-picker", "body-based-routing"] = "endpoint-picker"
    """`body-based-routing` only writes the body's model to `X-Gateway-Model-Name`, for routes to match."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of Envoy's clients whose `x-gateway-*`, `x-pointsman-*`, objective and identity headers are believed.
    Envoy must send the attribute `source.address`."""
    trust_unnamed: bool = False
    """Trust clients whose address Envoy doesn't send, too: for an Envoy that can't send it and removes such headers
    from its clients itself."""
    identity_headers: tuple[str, ...] = IDENTITY_HEADERS
    """Headers in which a proxy names its client; removed from all other peers' requests. `*` at the end: any ending."""
    forward_credentials: bool = False
    """Send the client's `authorization`, `x-api-key` and `api-key` on to engines, for engines that ask for keys."""
    other_paths: bool = False
    """Send requests for paths that aren't an API's to any engine, past keys, limits and guards; otherwise they get
    404."""
    stream_usage: bool = False
    """Read streamed responses for their token usage, even where nothing in the configuration counts tokens. Costs CPU
    for each event of a stream."""
    providers: bool = False
    """Send requests for providers there through Envoy, which needs routes to them; otherwise they get 501."""
    dynamo_headers: bool = False
    """Name the worker in Dynamo's headers; fallbacks are then dropped, because they would contradict them."""

    other_content: bool = False
    """Send requests for an API's path whose content type isn't JSON to any engine, unread, past keys, limits and
    guards; otherwise they get 415."""
    conformance_headers: bool = False
    """Heed `test-epp-endpoint-selection` from any client and answer with `x-conformance-test-served-endpoint`, as the
    conformance tests of the Gateway API Inference Extension ask. For test clusters alone."""

    max_head_bytes: int = Field(default=65536, ge=1024)
    """Longest headers together; longer ones get 431."""
    max_streams: int = Field(default=10000, ge=1)
    """Open requests of Envoy; further ones are refused at once."""

    @model_validator(mode="after")
    def _refuse_strangers(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if not self.open_to_all and self.tls_client_ca is None and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} is reachable from other hosts; listen on 127.0.0.1, set POINTSMAN_TLS_CERT, "
                "_KEY and _CLIENT_CA, or POINTSMAN_OPEN_TO_ALL=true if every host that can reach it may use it"
            )
        return self
