"""Prometheus metrics of receiving an engine's KV events."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_contracts.kv import OWN_TIERS
from pointsman_worker_agent.adapters.kv_subscriber import KvSubscriber
from pointsman_worker_agent.kv_speaker import KvSpeaker


class KvSource(NamedTuple):
    """The KV events of one worker."""

    speaker: KvSpeaker
    subscribers: Mapping[int, KvSubscriber]
    """By the rank of their publisher."""


class KvMetrics(Collector):
    """Plain counters, read at the scrape. Ranks are labels."""

    def __init__(self, sources: Callable[[], Iterable[KvSource]]) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        connected = GaugeMetricFamily(
            "pointsman_kv_publisher_heard", "1 once the engine's publisher of KV events was heard", labels=["rank"]
        )
        batches = CounterMetricFamily(
            "pointsman_kv_batches", "Batches of KV events: taken, or lost for good", labels=["rank", "outcome"]
        )
        held = GaugeMetricFamily("pointsman_kv_blocks_held", "Prefix blocks that the engine's ranks hold, added up")
        below = GaugeMetricFamily(
            "pointsman_kv_tier_blocks_held", "Prefix blocks that the engine holds below its device", labels=["tier"]
        )
        media = CounterMetricFamily(
            "pointsman_kv_media_unknown", "Events of a medium that stands for no tier; they are passed over"
        )
        unknown = CounterMetricFamily(
            "pointsman_kv_blocks_unknown", "Blocks of the engine whose beginning or content isn't known"
        )
        malformed = CounterMetricFamily("pointsman_kv_batches_malformed", "Batches that couldn't be read")
        messages = CounterMetricFamily(
            "pointsman_kv_messages", "Messages about the KV cache, by whether the bus accepted them", labels=["outcome"]
        )
        sources = list(self._sources())
        for source in sources:
            for rank, subscriber in source.subscribers.items():
                connected.add_metric([str(rank)], float(subscriber.connected))
                batches.add_metric([str(rank), "taken"], subscriber.heard)
                batches.add_metric([str(rank), "lost"], subscriber.sequence.missed)
        speakers = [source.speaker for source in sources]
        tiers = Counter[str]()
        for tier in OWN_TIERS:
            tiers[tier] = 0
        for speaker in speakers:
            tiers.update(speaker.blocks.count_lower())
        for tier, count in tiers.items():
            below.add_metric([tier], count)
        media.add_metric([], sum(speaker.unknown_media for speaker in speakers))
        held.add_metric([], sum(speaker.blocks.size for speaker in speakers))
        unknown.add_metric([], sum(speaker.blocks.unknown for speaker in speakers))
        malformed.add_metric([], sum(speaker.malformed for speaker in speakers))
        messages.add_metric(["sent"], sum(speaker.sent for speaker in speakers))
        messages.add_metric(["unsent"], sum(speaker.unsent for speaker in speakers))
        yield from (connected, batches, held, below, media, unknown, malformed, messages)
