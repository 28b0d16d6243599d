"""Detectors of the guard."""

from typing import Final

from pointsman_guard.plugins.chat_guardian import ChatGuardian
from pointsman_guard.plugins.embeddings import EmbeddingDetector
from pointsman_guard.plugins.linear import Linear
from pointsman_guard.plugins.moderation import Moderation
from pointsman_guard.plugins.patterns import Patterns
from pointsman_guard.plugins.webhook import Webhook
from pointsman_plugins.guarding import Detector

BUILTIN: Final[tuple[type[Detector], ...]] = (Patterns, Linear, EmbeddingDetector, Moderation, ChatGuardian, Webhook)
