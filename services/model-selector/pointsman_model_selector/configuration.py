"""Compiles and checks the model-selector's part of the configuration."""

from functools import cache

from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_model_selector.domain.selector import SelectorRegistries, Selectors, compile_selectors, registries
from pointsman_model_selector.plugins import BUILTIN


@cache
def plugins() -> SelectorRegistries:
    """The types installed in this environment, made once."""
    return registries(BUILTIN)


def compile_all(config: Config, revision: int = 0) -> Selectors:
    """The `selectors` section, ready to run. Raises ConfigError that names the selector."""
    del revision
    try:
        return compile_selectors(config, plugins())
    except PluginError as error:
        raise ConfigError.from_section("selectors", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would reject the configuration."""
    compile_all(config)
