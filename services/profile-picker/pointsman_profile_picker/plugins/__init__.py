"""Profile pickers of this project."""

from typing import Final

from pointsman_plugins.picking import ProfilePicker
from pointsman_profile_picker.plugins.attribute import Attribute
from pointsman_profile_picker.plugins.ranked import Ranked
from pointsman_profile_picker.plugins.rules import Rules
from pointsman_profile_picker.plugins.single import OneProfile
from pointsman_profile_picker.plugins.split import SplitPicker

BUILTIN: Final[tuple[type[ProfilePicker], ...]] = (OneProfile, Rules, SplitPicker, Attribute, Ranked)
