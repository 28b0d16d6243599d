"""The engines in Envoy's configuration: their cluster, how it connects, and how it picks and retries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pointsman_cli.words import CommandError
from pointsman_core.config import EdgeSettings, EngineTls

Address = tuple[str, int]
Json = dict[str, Any]
NO_TLS: Final[Mapping[Address, EngineTls]] = {}

TYPES: Final = "type.googleapis.com/envoy.extensions"
PROTOCOL: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_DESTINATION: Final = "x-gateway-destination-endpoint"
_IDLE_S: Final = 4.0
"""Seconds after which Envoy closes an idle connection to an engine: a second before uvicorn's server would do it."""
_ROOM: Final = 2**20
_RETRIES: Final[Json] = {"budget_percent": {"value": 20.0}, "min_retry_concurrency": 200}
"""Retries that may be under way at a time. Envoy's own bound is 3."""


def engines_cluster(
    addresses: Sequence[Address], limits: EdgeSettings, tls: Mapping[Address, EngineTls], trust: str | None
) -> Json:
    """The cluster that sends to the engines that the adapter picked. `trust`: a file of authorities, for engines whose
    settings name none."""
    picked = {
        "@type": f"{TYPES}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": _DESTINATION}]}}],
        "fallback_policy": {"policies": [_policy("round_robin", "RoundRobin")]},
    }
    return {
        **cluster("engines", addresses, limits, tls),
        **_connecting(),
        **_secured(tls, trust),
        "load_balancing_policy": {"policies": [{"typed_extension_config": {"name": "picked", "typed_config": picked}}]},
    }


def cluster(
    name: str, addresses: Sequence[Address], limits: EdgeSettings, tls: Mapping[Address, EngineTls] = NO_TLS
) -> Json:
    """A cluster of these addresses; `tls`: those that Envoy connects to by TLS."""
    # Host names belong only to the adapter: engines are picked by their IP addresses.
    named = not all(host.replace(".", "").isdigit() or ":" in host for host, _ in addresses)
    endpoints = [
        {"endpoint": {"address": socket(address)}, **(_matching(address) if address in tls else {})}
        for address in addresses
    ]
    return {
        "name": name,
        "type": "STRICT_DNS" if named else "STATIC",
        "connect_timeout": seconds(limits.connect_timeout),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _connecting() -> Json:
    """Engines bound their work themselves: Envoy's own bound of 1,024 requests would answer for engines with room."""
    bounds = {f"max_{each}": _ROOM for each in ("connections", "pending_requests", "requests")}
    return {
        "circuit_breakers": {"thresholds": [{**bounds, "retry_budget": _RETRIES}]},
        "typed_extension_protocol_options": {
            PROTOCOL: {
                "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": seconds(_IDLE_S)},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def _matching(address: Address) -> Json:
    """The mark of an endpoint by which its transport socket is found."""
    return {"metadata": {"filter_metadata": {"envoy.transport_socket_match": {"tls": _label(address)}}}}


def _label(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _secured(tls: Mapping[Address, EngineTls], trust: str | None) -> Json:
    """A transport socket for each engine with TLS; the others have none, and get plain HTTP."""
    if not tls:
        return {}
    return {
        "transport_socket_matches": [
            {
                "name": _label(address),
                "match": {"tls": _label(address)},
                "transport_socket": {"name": "tls", "typed_config": _upstream_tls(address[0], settings, trust)},
            }
            for address, settings in tls.items()
        ]
    }


def _upstream_tls(host: str, settings: EngineTls, trust: str | None) -> Json:
    common: Json = {}
    if settings.verify:
        name = settings.server_name
        matcher = {"san_type": "IP_ADDRESS" if name is None else "DNS", "matcher": {"exact": name or host}}
        authority = settings.ca or trust
        if authority is None:
            raise CommandError("this machine has no file of authorities.", "Set `ca` in `tls` of the engines' pool.")
        common["validation_context"] = {
            "trusted_ca": {"filename": str(Path(authority).resolve())},
            "match_typed_subject_alt_names": [matcher],
        }
    if settings.client_certificate is not None:
        file = {"filename": str(Path(settings.client_certificate).resolve())}
        common["tls_certificates"] = [{"certificate_chain": file, "private_key": file}]
    sni = {} if settings.server_name is None else {"sni": settings.server_name}
    return {
        "@type": f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
        **sni,
        "common_tls_context": common,
    }


def seconds(duration: float) -> str:
    """A duration as protobuf writes durations in JSON."""
    return f"{duration:.9f}".rstrip("0").rstrip(".") + "s"


def _policy(folder: str, kind: str) -> Json:
    typed = {"@type": f"{TYPES}.load_balancing_policies.{folder}.v3.{kind}"}
    return {"typed_extension_config": {"name": folder, "typed_config": typed}}


def socket(address: Address) -> Json:
    """An address as Envoy's configuration has it."""
    return {"socket_address": {"address": address[0], "port_value": address[1]}}
