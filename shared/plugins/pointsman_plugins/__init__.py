"""The base class of plugins; extension points and their values are in the modules below."""

from pointsman_core.plugins import Key, PluginError
from pointsman_core.refusal import Refusal
from pointsman_plugins.plugin import Params, Plugin, Reference, Stability

__all__ = ["Key", "Params", "Plugin", "PluginError", "Reference", "Refusal", "Stability"]
