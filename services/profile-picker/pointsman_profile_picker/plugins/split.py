"""`split`: weighted shares, for canaries and shifts of traffic."""

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_plugins.picking import Choice, PoolStates, ProfilePicker, need_profile
from pointsman_profile_picker.domain.split import Share, Split


class SplitPicker(ProfilePicker[Share]):
    """Deals requests to profiles by weight; the same key gets the same profile."""

    type_name = "split"

    def setup(self) -> None:
        self._split = Split(self.params, self.name)

    def bind(self, config: Config) -> None:
        for profile in self.params.split:
            need_profile(profile, config, "split")

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        del pools, now_s
        return Choice(self._split.profile_for(journey), f"share of {self.name}")
