"""The semantic-cache's check of a configuration, and the policy that follows from it."""

from pointsman_core.config import Config
from pointsman_semantic_cache.domain.policy import compile_policy


def check(config: Config) -> None:
    """Raise ConfigError when this service would reject the configuration."""
    compile_policy(config)
