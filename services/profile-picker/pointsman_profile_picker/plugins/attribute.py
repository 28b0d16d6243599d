"""`attribute`: reads the profile from an attribute that preprocessing wrote."""

from collections.abc import Mapping
from typing import cast

from pydantic import Field

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_plugins.picking import Choice, PickError, PoolStates, ProfilePicker, need_profile
from pointsman_plugins.plugin import Params


class AttributeParams(Params):
    """The attribute, and the profile for each of its values."""

    attribute: str = Field(min_length=1)
    """Key of the attribute; `identity.plan` reads field `plan` of attribute `identity`."""
    profiles: dict[str, str] | None = None
    """Value → profile; default: the value is the name of a profile."""


class Attribute(ProfilePicker[AttributeParams]):
    """Undecided when the attribute is absent or empty; a value without a profile is an error."""

    type_name = "attribute"

    def setup(self) -> None:
        self._path = self.params.attribute.split(".")
        self._profiles: Mapping[str, str] | None = self.params.profiles
        self._known: Mapping[str, str] = {}

    def bind(self, config: Config) -> None:
        for profile in (self._profiles or {}).values():
            need_profile(profile, config, "profiles")
        self._known = self._profiles or {name: name for name in config.profiles}

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        del pools, now_s
        value: object = journey.request.attributes
        for step in self._path:
            value = cast("Mapping[str, object]", value).get(step) if isinstance(value, dict) else None
        if value is None or value == "":
            return None
        profile = self._known.get(str(value))
        if profile is None:
            raise PickError(self.params.attribute, f"its value matches none of {', '.join(self._known)}")
        return Choice(profile, f"attribute {self.params.attribute}")
