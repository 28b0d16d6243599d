"""Settings of the mirror."""

from pointsman_runtime.configuring.settings import ServiceSettings


class MirrorSettings(ServiceSettings):
    """Settings of a mirror process, beside those of every service."""

    gateway_url: str = "http://127.0.0.1:8080"
    """Where copies go: a frontend, or the Envoy in front of the gateway."""
