"""Compiles and checks the scheduler's part of the configuration."""

from collections.abc import Mapping

from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.plugins import registries


def compile_policies(book: PolicyBook, config: Config) -> Mapping[str, Policy]:
    """The policy of each pool. Raises ConfigError that names the plugin."""
    try:
        return book.compile(config)
    except PluginError as error:
        raise ConfigError.from_section("scheduling", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would reject the configuration."""
    compile_policies(PolicyBook(registries()), config)
