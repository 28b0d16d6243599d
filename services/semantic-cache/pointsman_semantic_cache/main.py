"""Wiring of the semantic-cache."""

import asyncio
import time
from typing import Final

from pointsman_contracts.cache import CachePurge
from pointsman_contracts.journey import Journey
from pointsman_core.config import WORDS, Config
from pointsman_embedding.embedders import Embedders
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_journey.content_client import ContentClient
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing
from pointsman_semantic_cache.adapters.model_gates import ModelGates
from pointsman_semantic_cache.adapters.stores import Stores
from pointsman_semantic_cache.domain.policy import CachePolicy, compile_policy
from pointsman_semantic_cache.domain.questions import OpenQuestions
from pointsman_semantic_cache.flights import Flights
from pointsman_semantic_cache.handlers import Handlers
from pointsman_semantic_cache.metrics import CacheMetrics
from pointsman_semantic_cache.settings import SemanticCacheSettings
from pointsman_semantic_cache.surroundings import CacheSurroundings

CONCURRENCY: Final = 1024
_EXPIRE_S: Final = 10.0
"""How often texts go whose answer never came."""


def _compile(config: Config, revision: int) -> CachePolicy:
    del revision
    return compile_policy(config)


def build(service: Service[SemanticCacheSettings]) -> None:
    """Construct everything; connect to nothing."""
    settings = service.settings
    stores = Stores(settings.snapshot_dir)
    embedders = Embedders("only identical requests are answered from the cache")
    gates = ModelGates()
    questions = OpenQuestions()
    configuration = service.configuration(_compile)
    handlers = Handlers(
        CacheSurroundings(
            instance=service.process.instance,
            configuration=configuration,
            content=ContentClient(service.journeys),
            stores=stores,
            embedders=embedders,
            gates=gates,
            questions=questions,
            metrics=CacheMetrics(service.registry, stores.memory),
            missing=Missing(Log("cache")),
            flights=Flights(),
            alone=lambda: _alone(service),
        )
    )
    configuration.on_change(lambda revision: _prepare(revision.compiled, embedders, gates))
    service.journeys.stage(Journey, handlers.look_up, concurrency=CONCURRENCY)
    service.journeys.handle_reviews(handlers.review)
    service.events.handle(CachePurge, handlers.purge)
    stores.load_snapshot(_now_ms())
    service.every(settings.snapshot_every_s, lambda: stores.tick(_now_ms()))
    service.every(_EXPIRE_S, lambda: questions.expire_texts(time.monotonic()))
    service.on_stop(stores.close)
    service.on_stop(embedders.close)
    service.on_stop(gates.close)


def _prepare(policy: CachePolicy, embedders: Embedders, gates: ModelGates) -> None:
    caches = policy.caches.values()
    embedders.prepare(cache.embeddings for cache in caches if cache.embeddings is not None)
    gates.prepare(cache.gate for cache in caches if cache.gate.use != WORDS)


def _alone(service: Service[SemanticCacheSettings]) -> bool:
    now = asyncio.get_running_loop().time()
    return not service.heartbeat.table.has_live_peer(service.process.service, service.process.instance, now)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


PROGRAM = Program("semantic-cache", SemanticCacheSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
