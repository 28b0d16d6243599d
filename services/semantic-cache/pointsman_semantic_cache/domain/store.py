"""The interface of the stores of answers."""

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from pointsman_semantic_cache.domain.entry import CacheEntry, Meaning, Partition

NEAREST = 8
"""How many questions at most are close enough to look at; the gate refuses some."""


class Near(NamedTuple):
    """A question that was close."""

    entry: CacheEntry
    similarity: float


class StoreUnavailable(Exception):
    """The store can't be reached. The text is for the operator."""


class EntryStore(Protocol):
    """Every method raises StoreUnavailable. It returns an awaitable where a store outside the process is asked."""

    def find_exact(
        self, partition: Partition, key: bytes, now_ms: int, *, uses: bool = True
    ) -> CacheEntry | Awaitable[CacheEntry | None] | None:
        """The answer to an identical request; None when none is stored, or it has expired. `uses`: whether it stays
        longer for it."""
        ...

    async def find_near(self, partition: Partition, meaning: Meaning, threshold: float, now_ms: int) -> Sequence[Near]:
        """Answers to questions of the same context and embedder whose similarity reaches the threshold, the closest
        first, `NEAREST` at most."""
        ...

    def store_answer(self, partition: Partition, entry: CacheEntry, max_bytes: int) -> int | Awaitable[int]:
        """Store an answer, in place of the one before; returns how many others were evicted to stay within `max_bytes`
        of all partitions of the cache."""
        ...

    async def purge_answers(self, cache: str | None, tenant: str | None) -> int:
        """Forget answers of a cache and a tenant; None: of all. Returns how many."""
        ...

    async def close(self) -> None:
        """Release what it holds; it isn't used again."""
        ...
