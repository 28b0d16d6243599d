"""Compiles and checks the preprocessor's part of the configuration."""

from functools import cache

from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_plugins.preprocessing import Ports, RequestProcessor
from pointsman_plugins.registry import Registry
from pointsman_preprocessor.domain.chain import Within
from pointsman_preprocessor.domain.model_tokenizers import Load
from pointsman_preprocessor.domain.pipeline import Pipeline, registry
from pointsman_preprocessor.plugins import BUILTIN


@cache
def processors() -> Registry[RequestProcessor]:
    """The types installed in this environment, made once."""
    return registry(BUILTIN)


def compile_pipeline(
    config: Config,
    revision: int = 0,
    load: Load | None = None,
    ports: Ports | None = None,
    bound: Within | None = None,
) -> Pipeline:
    """The `preprocessing` section, ready to run; defaults as in `Pipeline`. Raises ConfigError that names
    the processor or the tokenizer."""
    del revision
    try:
        return Pipeline(config, processors(), load, ports, bound)
    except PluginError as error:
        raise ConfigError.from_section("preprocessing", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would reject the configuration; tokenizers are on its own disk."""
    compile_pipeline(config)
