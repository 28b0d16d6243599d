"""An Envoy that passes requests straight to the backend: what the gateway's Envoy costs without the gateway."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from benchmarks.overhead.stack import wait_for
from pointsman_cli.stack.envoy import executable
from pointsman_testing.ports import free_port

_TYPES: Final = "type.googleapis.com/envoy.extensions.filters"


def _socket(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def document(port: int, backend_port: int) -> dict[str, Any]:
    """Its configuration: one listener, one cluster, no filter but the router."""
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "plain",
        "use_remote_address": True,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "backend"}}],
                }
            ]
        },
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"}}],
    }
    backend = {
        "name": "backend",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "backend",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket(backend_port)}}]}],
        },
    }
    listener = {
        "name": "plain",
        "address": _socket(port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {"admin": {"address": _socket(0)}, "static_resources": {"listeners": [listener], "clusters": [backend]}}


@contextmanager
def listening(backend: str, folder: Path) -> Generator[str]:
    """One worker thread, as the gateway's Envoy has; yields its URL, and is gone afterwards."""
    port = free_port()
    config, admin = folder / "plain-envoy.yaml", folder / "plain-envoy.admin"
    config.write_text(yaml.safe_dump(document(port, urlsplit(backend).port or 80)))
    command = [executable(), "--config-path", str(config), "--admin-address-path", str(admin), "--use-dynamic-base-id"]
    process = subprocess.Popen([*command, "--concurrency", "1", "--log-level", "error"])
    try:
        wait_for(admin, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)
