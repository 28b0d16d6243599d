"""`split`: weighted shares, for canaries and shifts of traffic."""

from collections.abc import Mapping
from typing import cast

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_core.plugins import Params, Plugin
from pointsman_profile_picker.domain.picking import Choice, ProfilePicker, need_profile
from pointsman_profile_picker.domain.pools import PoolStates
from pointsman_profile_picker.domain.split import Share, Split


class SplitPicker(ProfilePicker):
    """Deals requests to profiles by weight; the same key gets the same profile."""

    type_name = "split"
    params_type = Share

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._share = cast("Share", params)
        self._split = Split(self._share, name)

    def bind(self, config: Config) -> None:
        for profile in self._share.split:
            need_profile(profile, config, "split")

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        del pools, now_s
        return Choice(self._split.arm(journey), f"share of {self.name}")
