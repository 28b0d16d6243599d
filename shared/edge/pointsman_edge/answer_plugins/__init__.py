"""Built-in response processors, and those of a configuration."""

from typing import Final

from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_edge.answer_plugins.answer_blocks import AnswerBlocks
from pointsman_plugins.registry import Registry
from pointsman_plugins.responding import ResponseProcessor

BUILTIN: Final[tuple[type[ResponseProcessor], ...]] = (AnswerBlocks,)


def response_processors() -> Registry[ResponseProcessor]:
    """All response processors: built-in ones and those of other distributions."""
    return Registry(ResponseProcessor, BUILTIN)


def build_response_processors(config: Config) -> dict[str, tuple[ResponseProcessor, ...]]:
    """The processors of each profile that has some, in their order: its own, then the shared ones. Raises
    ConfigError."""
    sections = {f"profiles.{name}.processors.response": each.processors for name, each in config.profiles.items()}
    sections["processors.response"] = config.processors
    if not any(section.response for section in sections.values()):
        return {}  # the search for plugins takes milliseconds
    types = response_processors()
    built: dict[str, tuple[ResponseProcessor, ...]] = {}
    for path, section in sections.items():
        try:
            made = types.build([use.spec for use in section.response])
            for each in made:
                each.check_config(config)
        except PluginError as error:
            raise ConfigError.from_section(path, error) from error
        built[path] = tuple(each for each in made if not each.called_by_another)
    shared = built["processors.response"]
    own = {name: built[f"profiles.{name}.processors.response"] for name in config.profiles}
    return {name: (*each, *shared) for name, each in own.items() if each or shared}
