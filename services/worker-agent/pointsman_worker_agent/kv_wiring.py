"""Wires up the receiving and publishing of an engine's KV events."""

import zmq.asyncio

from pointsman_contracts.kv import WorkerKvQuery
from pointsman_engines.speaker import EngineSpeaker
from pointsman_hosting.service import Service
from pointsman_worker_agent.adapters.kv_subscriber import KvSubscriber
from pointsman_worker_agent.domain.kv_endpoints import KvEndpoints
from pointsman_worker_agent.kv_metrics import KvMetrics
from pointsman_worker_agent.kv_speaker import FLUSH_S, KvSpeaker
from pointsman_worker_agent.settings import WorkerAgentSettings


def tell_kv_events(service: Service[WorkerAgentSettings], engine: EngineSpeaker, endpoints: KvEndpoints) -> None:
    """Receive every rank's KV events and publish the engine's blocks on the bus."""
    settings = service.settings
    worker = engine.worker
    ranks = settings.kv_ranks

    def model() -> str:
        facts = engine.status.facts
        models = (facts.served.models if facts is not None else ()) or worker.models
        return models[0] if models and facts is not None else ""

    def capacity() -> int | None:
        facts = engine.status.facts
        blocks = facts.cache.kv_blocks if facts is not None else None
        return None if blocks is None else -(-blocks // ranks)

    def engine_block_tokens() -> int | None:
        facts = engine.status.facts
        return facts.cache.block_tokens if facts is not None else None

    def new_life() -> None:
        for each in subscribers:
            each.begin_life()

    speaker = KvSpeaker(
        service.bus,
        pool=worker.pool,
        worker=worker.worker,
        block_tokens=settings.kv_block_tokens,
        boot_id=lambda: "" if engine.registrar.withheld else engine.status.boot_id,
        model=model,
        capacity=capacity,
        engine_block_tokens=engine_block_tokens,
        on_new_life=new_life,
        on_unusable=lambda what: engine.registrar.found("kv_block_size", what),
        store=settings.kv_store,
        store_media=settings.kv_store_media,
    )
    context = zmq.asyncio.Context()

    async def close() -> None:
        context.destroy(linger=0)

    def subscriber(rank: int) -> KvSubscriber:
        return KvSubscriber(
            context,
            endpoints.of_rank(rank),
            take=lambda payload: speaker.receive_batch(rank, payload),
            lost=lambda: speaker.note_lost_batches(rank),
            reset=lambda: speaker.forget_rank(rank),
            broke=lambda: speaker.broke(rank),
        )

    subscribers = [subscriber(rank) for rank in range(ranks)]
    for rank, each in enumerate(subscribers):
        service.run_in_background(f"kv-events-{rank}", each.run)
    service.every(FLUSH_S, speaker.publish_changes)
    service.events.handle(WorkerKvQuery, speaker.answer_query, worker.pool, worker.worker)
    service.registry.register(KvMetrics(speaker, subscribers))
    service.on_stop(close)
