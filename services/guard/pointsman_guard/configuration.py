"""What the configuration means to the guard."""

from functools import cache

from pointsman_core.config import Config
from pointsman_guard.domain.policy import GuardPolicy, compile_policies
from pointsman_guard.plugins import BUILTIN
from pointsman_plugins.guarding import Detector, Outside
from pointsman_plugins.registry import Registry

"""Entry points of other distributions' detectors."""


@cache
def plugins() -> Registry[Detector]:
    """The types that this environment has, made once."""
    return Registry(Detector, BUILTIN)


def compile_all(config: Config, outside: Outside | None = None) -> dict[str, GuardPolicy]:
    """The `guards` section, ready to run. Raises ConfigError that names the guard."""
    return compile_policies(config, plugins(), outside)


def check(config: Config) -> None:
    """Raise ConfigError when this service would refuse the configuration. The policy that every configuration has is
    right, and takes half a second to build."""
    if config.guards:
        compile_all(config)
