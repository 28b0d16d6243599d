"""Wiring of the model-selector."""

from functools import cache

from pointsman_contracts.journey import Journey
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.subjects import ANY
from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_model_selector.domain.selector import CompiledSelector, Registries, compile_selectors, registries
from pointsman_model_selector.handlers import Handlers
from pointsman_model_selector.plugins import BUILTIN
from pointsman_model_selector.settings import ModelSelectorSettings
from pointsman_runtime.service import Service, run


@cache
def plugins() -> Registries:
    """The types that this environment has; looked up once, because searching all distributions takes milliseconds."""
    return registries(BUILTIN)


def compile_all(config: Config, revision: int = 0) -> dict[str, CompiledSelector]:
    """The `selectors` section, ready to run. Raises ConfigError that names the selector."""
    del revision
    try:
        return compile_selectors(config, plugins())
    except PluginError as error:
        raise ConfigError.at("selectors", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would refuse the configuration."""
    compile_all(config)


def build(service: Service[ModelSelectorSettings]) -> None:
    """Construct everything; connect to nothing."""
    handlers = Handlers(service.configuration(compile_all), service.registry, time_every=service.settings.time_every)
    service.bus.stage(Journey, handlers.select)
    service.bus.listen(PoolSnapshot, handlers.snapshot, ANY, keep="latest")
    service.bus.listen(ModelStatistics, handlers.statistics, ANY, keep="latest")


def main() -> int:
    """Run the service; returns its exit code."""
    return run("model-selector", ModelSelectorSettings, build)
