"""What the configuration means to the frontend."""

from pointsman_core.config import Config
from pointsman_edge.deciding.policy import compile_policy


def check(config: Config) -> None:
    """Raise ConfigError when this service would refuse the configuration."""
    compile_policy(config, 0)
