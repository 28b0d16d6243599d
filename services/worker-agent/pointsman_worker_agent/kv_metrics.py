"""Prometheus metrics of receiving an engine's KV events."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_contracts.kv import OWN_TIERS
from pointsman_worker_agent.adapters.kv_subscriber import KvSubscriber
from pointsman_worker_agent.kv_speaker import KvSpeaker


class KvMetrics(Collector):
    """Plain counters, read at the scrape. Ranks are labels."""

    def __init__(self, speaker: KvSpeaker, subscribers: Sequence[KvSubscriber]) -> None:
        self._speaker = speaker
        self._subscribers = subscribers

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        connected = GaugeMetricFamily(
            "pointsman_kv_publisher_heard", "1 once the engine's publisher of KV events was heard", labels=["rank"]
        )
        batches = CounterMetricFamily(
            "pointsman_kv_batches", "Batches of KV events: taken, or lost for good", labels=["rank", "outcome"]
        )
        for rank, subscriber in enumerate(self._subscribers):
            connected.add_metric([str(rank)], float(subscriber.connected))
            batches.add_metric([str(rank), "taken"], subscriber.heard)
            batches.add_metric([str(rank), "lost"], subscriber.sequence.missed)
        speaker = self._speaker
        held = GaugeMetricFamily("pointsman_kv_blocks_held", "Prefix blocks that the engine holds")
        held.add_metric([], speaker.blocks.size)
        below = GaugeMetricFamily(
            "pointsman_kv_tier_blocks_held", "Prefix blocks that the engine holds below its device", labels=["tier"]
        )
        for tier, count in (dict.fromkeys(OWN_TIERS, 0) | speaker.blocks.count_lower()).items():
            below.add_metric([tier], count)
        media = CounterMetricFamily(
            "pointsman_kv_media_unknown", "Events of a medium that stands for no tier; they are passed over"
        )
        media.add_metric([], speaker.unknown_media)
        unknown = CounterMetricFamily(
            "pointsman_kv_blocks_unknown", "Blocks of the engine whose beginning or content isn't known"
        )
        unknown.add_metric([], speaker.blocks.unknown)
        malformed = CounterMetricFamily("pointsman_kv_batches_malformed", "Batches that couldn't be read")
        malformed.add_metric([], speaker.malformed)
        messages = CounterMetricFamily(
            "pointsman_kv_messages", "Messages about the KV cache, by whether the bus accepted them", labels=["outcome"]
        )
        messages.add_metric(["sent"], speaker.sent)
        messages.add_metric(["unsent"], speaker.unsent)
        yield from (connected, batches, held, below, media, unknown, malformed, messages)
