"""Detectors of the guard."""

from typing import Final

from pointsman_guard.domain.checking import Detector
from pointsman_guard.plugins.moderation import Moderation
from pointsman_guard.plugins.patterns import Patterns

BUILTIN: Final[tuple[type[Detector], ...]] = (Patterns, Moderation)
