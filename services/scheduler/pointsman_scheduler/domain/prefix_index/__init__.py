"""Which worker holds which prompt prefix."""

from pointsman_scheduler.domain.prefix_index.index import Memory, PrefixIndex
from pointsman_scheduler.domain.prefix_index.life import Dump

__all__ = ["Dump", "Memory", "PrefixIndex"]
