"""Wiring of the profile-picker."""

from functools import cache

from pointsman_contracts.journey import Journey
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.subjects import ANY
from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError, Registry
from pointsman_profile_picker.domain.picking import ProfilePicker
from pointsman_profile_picker.domain.route import Routing, registry
from pointsman_profile_picker.handlers import Handlers
from pointsman_profile_picker.plugins import BUILTIN
from pointsman_profile_picker.settings import ProfilePickerSettings
from pointsman_runtime.service import Service, run


@cache
def pickers() -> Registry[ProfilePicker]:
    """The types that this environment has; looked up once, because searching all distributions takes milliseconds."""
    return registry(BUILTIN)


def compile_routing(config: Config, revision: int = 0) -> Routing:
    """Picker and profiles, ready to run. Raises ConfigError that names the rule."""
    del revision
    try:
        return Routing(config, pickers())
    except PluginError as error:
        raise ConfigError.at("profile-picker", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would refuse the configuration."""
    compile_routing(config)


def build(service: Service[ProfilePickerSettings]) -> None:
    """Construct everything; connect to nothing."""
    handlers = Handlers(service.configuration(compile_routing), service.registry)
    service.bus.stage(Journey, handlers.pick)
    service.bus.listen(PoolSnapshot, handlers.snapshot, ANY, keep="latest")


def main() -> int:
    """Run the service; returns its exit code."""
    return run("profile-picker", ProfilePickerSettings, build)
