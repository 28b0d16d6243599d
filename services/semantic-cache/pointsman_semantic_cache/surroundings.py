"""The stores, embedders and clocks that lookups and storing use; tests replace them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pointsman_core.config import Cache, Embeddings, GateSettings
from pointsman_embedding.embedder import Embedder
from pointsman_hosting.configuration import Configuration
from pointsman_journey.content_client import ContentSource
from pointsman_runtime.telling.missing import Missing
from pointsman_semantic_cache.domain.model_gate import ModelGate
from pointsman_semantic_cache.domain.policy import CachePolicy
from pointsman_semantic_cache.domain.questions import OpenQuestions
from pointsman_semantic_cache.domain.store import EntryStore
from pointsman_semantic_cache.flights import Flights
from pointsman_semantic_cache.metrics import CacheMetrics


class StoreOf(Protocol):
    """Finds stores."""

    def store_of(self, cache: Cache) -> EntryStore:
        """Where a cache's answers are kept. Raises StoreUnavailable."""
        ...

    def used_stores(self) -> list[EntryStore]:
        """Every store that was in use."""
        ...

    async def renew_snapshot(self) -> None:
        """Replace the snapshot, so that it lacks deleted answers. Raises StoreUnavailable."""
        ...


class EmbedderOf(Protocol):
    """Finds embedders."""

    async def get(self, settings: Embeddings) -> Embedder:
        """Raises EmbedderUnavailable."""
        ...


class GateOf(Protocol):
    """Finds models that compare questions."""

    async def get(self, settings: GateSettings) -> ModelGate:
        """Raises GateUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class CacheSurroundings:
    """The surroundings of one process."""

    instance: str
    configuration: Configuration[CachePolicy]
    content: ContentSource
    stores: StoreOf
    embedders: EmbedderOf
    gates: GateOf
    questions: OpenQuestions
    metrics: CacheMetrics
    missing: Missing
    flights: Flights
    alone: Callable[[], bool]
    """Whether no other process of the service lives."""
