"""The configuration model. Strict: what isn't known is refused, with the known names."""

from pointsman_core.config.caching import DEFAULT_CACHE, WORDS, Cache, Embeddings, GateSettings
from pointsman_core.config.cascading import Cascade
from pointsman_core.config.discovery import EndpointFile, Kubernetes, StaticEngine, load_endpoints
from pointsman_core.config.edge import Cors, EdgeSettings
from pointsman_core.config.engine_tls import EngineTls
from pointsman_core.config.flow_control import Band, FlowControl
from pointsman_core.config.guarding import DEFAULT_GUARD, Action, Guard
from pointsman_core.config.mirroring import DEFAULT_MIRROR, Mirror
from pointsman_core.config.model import AUTO, Config, Profile, load
from pointsman_core.config.pool import Pool
from pointsman_core.config.processing import ANSWER_BLOCKS, Processors, ProcessorUse, identifies
from pointsman_core.config.provider import Provider
from pointsman_core.config.rewriting import Rewrite
from pointsman_core.config.scheduling import SchedulingPolicy, SchedulingProfile
from pointsman_core.config.section import ConfigError, PluginUse, ScorerUse, Section
from pointsman_core.config.selection import JointChoice, PickerUse, Ranking, Selector
from pointsman_core.config.served_model import Api, Model
from pointsman_core.config.stages import CustomStage, StageUse, active, response_entry, stage_entry
from pointsman_core.config.tokenizer import Tokenizer

__all__ = [
    "ANSWER_BLOCKS",
    "AUTO",
    "DEFAULT_CACHE",
    "DEFAULT_GUARD",
    "DEFAULT_MIRROR",
    "WORDS",
    "Action",
    "Api",
    "Band",
    "Cache",
    "Cascade",
    "Config",
    "ConfigError",
    "Cors",
    "CustomStage",
    "EdgeSettings",
    "Embeddings",
    "EndpointFile",
    "EngineTls",
    "FlowControl",
    "GateSettings",
    "Guard",
    "JointChoice",
    "Kubernetes",
    "Mirror",
    "Model",
    "PickerUse",
    "PluginUse",
    "Pool",
    "ProcessorUse",
    "Processors",
    "Profile",
    "Provider",
    "Ranking",
    "Rewrite",
    "SchedulingPolicy",
    "SchedulingProfile",
    "ScorerUse",
    "Section",
    "Selector",
    "StageUse",
    "StaticEngine",
    "Tokenizer",
    "active",
    "identifies",
    "load",
    "load_endpoints",
    "response_entry",
    "stage_entry",
]
