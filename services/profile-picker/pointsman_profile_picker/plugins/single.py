"""`single`: one profile for everything."""

from collections.abc import Mapping
from typing import cast

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_core.plugins import Params, Plugin
from pointsman_profile_picker.domain.picking import Choice, ProfilePicker, need_profile
from pointsman_profile_picker.domain.pools import PoolStates


class SingleParams(Params):
    """Which one."""

    profile: str | None = None
    """Default: the only profile there is; with several, undecided."""


class Single(ProfilePicker):
    """Every request gets the same profile."""

    type_name = "single"
    params_type = SingleParams

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._profile = cast("SingleParams", params).profile
        self._choice: Choice | None = None

    def bind(self, config: Config) -> None:
        profile = self._profile
        if profile is not None:
            need_profile(profile, config, "profile")
        elif len(config.profiles) == 1:
            profile = next(iter(config.profiles))
        self._choice = None if profile is None else Choice(profile, "the only profile")

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        del journey, pools, now_s
        return self._choice
