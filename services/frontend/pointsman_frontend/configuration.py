"""Checks a configuration for the frontend."""

from pointsman_core.config import Config
from pointsman_edge.deciding.policy import compile_policy
from pointsman_providers import resolve


def check(config: Config) -> None:
    """Raise ConfigError if this service would refuse the configuration."""
    resolve.check(config)
    compile_policy(config, 0)
