"""Checks a configuration for the batch service."""

from typing import NamedTuple

from pointsman_core.config import Config


class BatchPolicy(NamedTuple):
    """A revision as this service runs it."""

    config: Config
    revision: int


def check(config: Config) -> None:
    """Raise ConfigError if this service would refuse the configuration: it never does."""
    del config


def compile_policy(config: Config, revision: int) -> BatchPolicy:
    """Keep the configuration and its number."""
    return BatchPolicy(config, revision)
