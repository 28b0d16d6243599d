"""Wires up the receiving and publishing of the KV events of an engine, or of each of its ranks."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import zmq.asyncio

from pointsman_contracts.kv import WorkerKvQuery
from pointsman_engines.speaker import EngineSpeaker
from pointsman_engines.worker_voice import WorkerVoice
from pointsman_hosting.service import Service
from pointsman_runtime.bus.cancellation import end_all
from pointsman_worker_agent.adapters.kv_subscriber import KvSubscriber
from pointsman_worker_agent.domain.kv_endpoints import KvEndpoints
from pointsman_worker_agent.kv_metrics import KvMetrics, KvSource
from pointsman_worker_agent.kv_speaker import FLUSH_S, KvSpeaker
from pointsman_worker_agent.settings import WorkerAgentSettings


class KvFeedOfWorker:
    """The KV events of one worker: those of its publishers, by their place after the first port."""

    def __init__(
        self,
        service: Service[WorkerAgentSettings],
        voice: WorkerVoice,
        context: zmq.asyncio.Context,
        endpoints: KvEndpoints,
        publishers: Sequence[int],
    ) -> None:
        self.worker: Final = voice.worker
        self.speaker: Final = KvSpeaker(
            service.bus,
            pool=voice.worker.pool,
            worker=voice.worker.worker,
            block_tokens=service.settings.kv_block_tokens,
            boot_id=lambda: "" if voice.registrar.withheld else voice.status.boot_id,
            model=lambda: _model(voice),
            capacity=lambda: _capacity(voice, len(publishers)),
            engine_block_tokens=lambda: None if voice.status.facts is None else voice.status.facts.cache.block_tokens,
            on_new_life=self._begin_life,
            on_unusable=lambda what: voice.registrar.found("kv_block_size", what),
            store=service.settings.kv_store,
            store_media=service.settings.kv_store_media,
        )
        self.subscribers: Final = {place: self._subscriber(context, endpoints, place) for place in publishers}

    def _subscriber(self, context: zmq.asyncio.Context, endpoints: KvEndpoints, place: int) -> KvSubscriber:
        speaker = self.speaker
        return KvSubscriber(
            context,
            endpoints.of_rank(place),
            take=lambda payload: speaker.receive_batch(place, payload),
            lost=lambda: speaker.note_lost_batches(place),
            reset=lambda: speaker.forget_rank(place),
            broke=lambda: speaker.broke(place),
        )

    def _begin_life(self) -> None:
        for each in self.subscribers.values():
            each.begin_life()


class KvFeeds:
    """The feed of the engine, or one for each of its ranks; others where its ranks change."""

    def __init__(self, service: Service[WorkerAgentSettings], engine: EngineSpeaker, endpoints: KvEndpoints) -> None:
        self.current: tuple[KvFeedOfWorker, ...] = ()
        self._service: Final = service
        self._engine: Final = engine
        self._endpoints: Final = endpoints
        self._context: Final = zmq.asyncio.Context()
        self._changed: Final = asyncio.Event()
        self._answering: Final[dict[str, KvSpeaker]] = {}
        engine.on_change(self._changed.set)

    def publish_changes(self) -> None:
        """To be called every `FLUSH_S`."""
        for feed in self.current:
            feed.speaker.publish_changes()

    async def run(self) -> None:
        """Receive until cancelled. Raises the error that ended a subscription."""
        while True:
            self._changed.clear()
            self.current = feeds = self._make_feeds()
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(each.run()) for feed in feeds for each in feed.subscribers.values()]
            changed = loop.create_task(self._changed.wait())
            try:
                done, _ = await asyncio.wait((*tasks, changed), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await end_all([*tasks, changed])

    async def close(self) -> None:
        """Close every socket."""
        self._context.destroy(linger=0)

    def _make_feeds(self) -> tuple[KvFeedOfWorker, ...]:
        engine, service = self._engine, self._service
        places = [[rank.number] for rank in engine.ranks] or [list(range(service.settings.kv_ranks))]
        feeds = tuple(
            [
                KvFeedOfWorker(service, voice, self._context, self._endpoints, publishers)
                for voice, publishers in zip(engine.voices, places, strict=True)
            ]
        )
        for feed in feeds:
            name = feed.worker.worker
            if name not in self._answering:
                service.bus.answer(WorkerKvQuery, partial(self._answer_query, name), feed.worker.pool, name)
            self._answering[name] = feed.speaker
        return feeds

    def _answer_query(self, worker: str, query: WorkerKvQuery) -> bytes:
        return self._answering[worker].answer_query(query).encode()


def _model(voice: WorkerVoice) -> str:
    facts = voice.status.facts
    models = (facts.served.models if facts is not None else ()) or voice.worker.models
    return models[0] if models and facts is not None else ""


def _capacity(voice: WorkerVoice, publishers: int) -> int | None:
    facts = voice.status.facts
    blocks = facts.cache.kv_blocks if facts is not None else None
    return None if blocks is None else -(-blocks // publishers)


def tell_kv_events(service: Service[WorkerAgentSettings], engine: EngineSpeaker, endpoints: KvEndpoints) -> None:
    """Receive the engine's KV events and publish the blocks of its workers on the bus."""
    feeds = KvFeeds(service, engine, endpoints)
    service.run_in_background("kv-events", feeds.run)
    service.every(FLUSH_S, feeds.publish_changes)
    service.registry.register(KvMetrics(lambda: [KvSource(feed.speaker, feed.subscribers) for feed in feeds.current]))
    service.on_stop(feeds.close)
