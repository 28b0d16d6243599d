"""Settings of the model-selector."""

from pydantic import Field

from pointsman_runtime.configuring.settings import ServiceSettings


class ModelSelectorSettings(ServiceSettings):
    """Settings of a model-selector, beside those of every service."""

    time_every: int = Field(default=32, ge=1)
    """Plugins are timed in one selection out of this number, for the metric of plugin latencies."""
