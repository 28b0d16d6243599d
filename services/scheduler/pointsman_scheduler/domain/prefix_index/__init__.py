"""Which worker holds which prompt prefix."""

from pointsman_scheduler.domain.prefix_index.index import Dump, Memory, PrefixIndex

__all__ = ["Dump", "Memory", "PrefixIndex"]
