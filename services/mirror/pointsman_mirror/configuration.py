"""Checks and compiles a configuration for the mirror."""

from collections.abc import Mapping

from pointsman_core.config import Config, Mirror


def check(config: Config) -> None:
    """Raise ConfigError if this service would refuse the configuration: it never does."""
    del config


def compile_mirrors(config: Config, revision: int) -> Mapping[str, Mirror]:
    """The policies, by name."""
    del revision
    return config.mirrors
