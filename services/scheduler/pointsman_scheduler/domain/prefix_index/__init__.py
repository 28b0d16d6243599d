"""Which worker holds which prompt prefix."""

from pointsman_scheduler.domain.prefix_index.index import PrefixIndex
from pointsman_scheduler.domain.prefix_index.life import Dump
from pointsman_scheduler.domain.prefix_index.memory import Memory

__all__ = ["Dump", "Memory", "PrefixIndex"]
