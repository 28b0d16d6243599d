"""The closest question whose answer will do."""

from collections.abc import Sequence
from typing import NamedTuple

from pointsman_semantic_cache.domain.entry import CacheEntry, Meaning
from pointsman_semantic_cache.domain.gate.comparing import difference
from pointsman_semantic_cache.domain.store import Near


class Found(NamedTuple):
    """The outcome of a comparison with close questions."""

    entry: CacheEntry | None
    similarity: float
    refused: tuple[str, ...]
    """Why the closer ones were rejected."""
    judged: str = ""
    """The verdict of a model as gate on the accepted one."""


def find_meant(meaning: Meaning, near: Sequence[Near]) -> Found:
    """Look at close questions, the closest first."""
    refused: list[str] = []
    for entry, similarity in near:
        if entry.meaning is None:
            continue
        reason = difference(meaning.signature, entry.meaning.signature)
        if reason is None:
            return Found(entry, similarity, tuple(refused))
        refused.append(reason)
    return Found(None, 0.0, tuple(refused))
