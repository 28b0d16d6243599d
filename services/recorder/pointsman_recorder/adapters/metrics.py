"""The recorder's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Gauge

from pointsman_runtime.telling.counting import Counter


class RecorderMetrics:
    """Counters of one recorder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "pointsman_recorder_events",
            "Events that were read: kept, there already, or no event that can be read",
            ["outcome"],
            registry=registry,
        )
        self.behind = Gauge("pointsman_recorder_behind", "Events that weren't read yet", registry=registry)
        self.records = Counter(
            "pointsman_recorder_usage_records", "Records that were written to the usage ledger", registry=registry
        )
        self.counted = Counter(
            "pointsman_recorder_usage_counted", "Records of the usage ledger that were summed", registry=registry
        )
        self.repeated = Counter(
            "pointsman_recorder_usage_repeated", "Records that were in the usage ledger already", registry=registry
        )
        self.unreadable = Counter(
            "pointsman_recorder_usage_unreadable",
            "Records of the usage ledger that can't be read, and aren't summed",
            registry=registry,
        )
        self.failures = Counter(
            "pointsman_recorder_failures",
            "Times that work was begun anew, by kind of work",
            ["work"],
            registry=registry,
        )
        self.store_bytes = Gauge("pointsman_recorder_store_bytes", "Size of the store", registry=registry)
        self.forgotten = Counter(
            "pointsman_recorder_events_forgotten",
            "Events that were deleted for their age or for room",
            registry=registry,
        )
        self.regret_requests = Counter(
            "pointsman_regret_requests",
            "Choices that were judged, by scheduling profile: the one that was used, and shadows",
            ["pool", "profile"],
            registry=registry,
        )
        self.regret_seconds = Counter(
            "pointsman_regret_seconds",
            "Cost of choices beyond the best candidate's, in seconds of waiting for a first token, by reason",
            ["pool", "profile", "reason"],
            registry=registry,
        )
        self.unjudged = Counter(
            "pointsman_regret_unjudged", "Requests that weren't judged, by why", ["pool", "why"], registry=registry
        )
        self.unpublished = Counter(
            "pointsman_regret_unpublished", "Judged requests whose event the bus didn't take", registry=registry
        )
