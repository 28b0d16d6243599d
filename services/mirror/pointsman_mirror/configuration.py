"""Checks and compiles a configuration for the mirror."""

from collections.abc import Mapping
from typing import NamedTuple

from pointsman_core.config import Config, Mirror
from pointsman_core.prices import Prices


class MirrorPolicy(NamedTuple):
    """A revision as this service runs it."""

    mirrors: Mapping[str, Mirror]
    prices: Prices


def check(config: Config) -> None:
    """Raise ConfigError if this service would refuse the configuration: it never does."""
    del config


def compile_policy(config: Config, revision: int) -> MirrorPolicy:
    """What the mirror needs of a configuration."""
    del revision
    return MirrorPolicy(config.mirrors, Prices(config))
