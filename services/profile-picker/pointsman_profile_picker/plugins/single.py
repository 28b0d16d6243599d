"""`single`: one profile for everything."""

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_plugins.picking import Choice, PoolStates, ProfilePicker, need_profile
from pointsman_plugins.plugin import Params


class OneProfileParams(Params):
    """The profile."""

    profile: str | None = None
    """Default: the only profile there is; with several, undecided."""


class OneProfile(ProfilePicker[OneProfileParams]):
    """Every request gets the same profile."""

    type_name = "single"

    def setup(self) -> None:
        self._choice: Choice | None = None

    def bind(self, config: Config) -> None:
        profile = self.params.profile
        if profile is not None:
            need_profile(profile, config, "profile")
        elif len(config.profiles) == 1:
            profile = next(iter(config.profiles))
        self._choice = None if profile is None else Choice(profile, "the only profile")

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        del journey, pools, now_s
        return self._choice
