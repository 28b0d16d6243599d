"""Metrics of the mirror."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from pointsman_runtime.telling.counting import Counter


class MirrorMetrics:
    """Counters and gauges."""

    def __init__(self, registry: CollectorRegistry, open_copies: Callable[[], int]) -> None:
        self.copies = Counter(
            "pointsman_mirror_copies",
            "Copies of requests that ended, by outcome",
            ["mirror", "model", "outcome"],
            registry=registry,
        )
        self.skipped = Counter(
            "pointsman_mirror_skipped",
            "Requests in the share of a mirror that weren't copied, by reason",
            ["mirror", "reason"],
            registry=registry,
        )
        Gauge("pointsman_mirror_copies_open", "Copies that are open", registry=registry).set_function(open_copies)
