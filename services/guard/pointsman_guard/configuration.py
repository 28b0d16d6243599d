"""Compiles and checks the guard's part of the configuration."""

from functools import cache

from pointsman_core.config import Config
from pointsman_guard.domain.policy import GuardPolicy, compile_policies
from pointsman_guard.plugins import BUILTIN
from pointsman_plugins.guarding import Detector, Outside
from pointsman_plugins.registry import Registry

"""Entry points of other distributions' detectors."""


@cache
def plugins() -> Registry[Detector]:
    """The types installed in this environment, made once."""
    return Registry(Detector, BUILTIN)


def compile_all(config: Config, outside: Outside | None = None) -> dict[str, GuardPolicy]:
    """The `guards` section, ready to run. Raises ConfigError that names the guard."""
    return compile_policies(config, plugins(), outside)


def check(config: Config) -> None:
    """Raise ConfigError when this service would reject the configuration. Skips the built-in policy, which is valid and
    takes 0.5 s to build."""
    if config.guards:
        compile_all(config)
