"""Compiles and checks the profile-picker's part of the configuration."""

from functools import cache

from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_plugins.picking import ProfilePicker
from pointsman_plugins.registry import Registry
from pointsman_profile_picker.domain.route import Routing, registry
from pointsman_profile_picker.plugins import BUILTIN


@cache
def pickers() -> Registry[ProfilePicker]:
    """The types installed in this environment, made once."""
    return registry(BUILTIN)


def compile_routing(config: Config, revision: int = 0) -> Routing:
    """Picker and profiles, ready to run. Raises ConfigError that names the rule."""
    del revision
    try:
        return Routing(config, pickers())
    except PluginError as error:
        raise ConfigError.from_section("profile-picker", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would reject the configuration."""
    compile_routing(config)
