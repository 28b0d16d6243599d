"""The configuration model. Strict: what isn't known is refused, with the known names."""

from pointsman_core.config.flow_control import Band, FlowControl
from pointsman_core.config.model import (
    AUTO,
    Config,
    Edge,
    Model,
    Pool,
    Profile,
    Served,
    StaticEngine,
    load,
)
from pointsman_core.config.provider import Provider
from pointsman_core.config.rewriting import Rewrite
from pointsman_core.config.scheduling import SchedulingPolicy, SchedulingProfile
from pointsman_core.config.section import ConfigError, PluginUse, ScorerUse, Section
from pointsman_core.config.selection import PickerUse, Ranking, Selector
from pointsman_core.config.stages import CustomStage, StageUse, response_entry, stage_entry
from pointsman_core.config.tokenizer import Tokenizer

__all__ = [
    "AUTO",
    "Band",
    "Config",
    "ConfigError",
    "CustomStage",
    "Edge",
    "FlowControl",
    "Model",
    "PickerUse",
    "PluginUse",
    "Pool",
    "Profile",
    "Provider",
    "Ranking",
    "Rewrite",
    "SchedulingPolicy",
    "SchedulingProfile",
    "ScorerUse",
    "Section",
    "Selector",
    "Served",
    "StageUse",
    "StaticEngine",
    "Tokenizer",
    "load",
    "response_entry",
    "stage_entry",
]
