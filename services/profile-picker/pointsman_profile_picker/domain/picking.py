"""The extension point: what chooses the profile of a request, once."""

from abc import abstractmethod
from typing import NamedTuple

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_core.plugins import PluginError, unknown
from pointsman_plugins.plugin import ParamsT_co, Plugin
from pointsman_profile_picker.domain.pools import PoolStates


class Choice(NamedTuple):
    """The chosen profile, and why in a few words without request text."""

    profile: str
    note: str


class PickError(Exception):
    """The picker failed at a request. `rule` names what failed, `reason` says how, for the operator."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason


class ProfilePicker(Plugin[ParamsT_co]):
    """Chooses one of the profiles. It runs once per request and never again (S0-23)."""

    group = "pointsman.profile_picker.pickers"
    stability = "beta"

    reads_pools: bool = False
    """Whether choices depend on the state of pools, so that old state is told."""

    def bind(self, config: Config) -> None:
        """Check the parameters against the whole configuration. Raises PluginError; called once, before `pick`."""
        del config

    @abstractmethod
    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        """The profile for this request, or None when undecided. Raises PickError.

        `journey.request` holds headers, path, fields, features and attributes; `now_s` is the monotonic clock that
        ages `pools`.
        """


def need_profile(name: str, config: Config, *path: str | int) -> None:
    """Check that a profile of this name exists. Raises PluginError; `path` leads to the parameter that names it."""
    if name not in config.profiles:
        raise PluginError(unknown("profile", name, config.profiles), path)
