"""What the configuration means to the metrics-collector."""

from pointsman_core.config import Config


def check(config: Config, revision: int = 0) -> None:
    """Raise ConfigError when this service would refuse the configuration; it takes every valid one."""
    del config, revision
