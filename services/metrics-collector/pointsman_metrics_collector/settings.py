"""Settings of the metrics-collector."""

from pointsman_runtime.configuring.settings import ServiceSettings


class MetricsCollectorSettings(ServiceSettings):
    """It takes those of every service and no others."""
