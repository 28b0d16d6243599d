"""Metrics of the batch service."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from pointsman_runtime.telling.counting import Counter


class BatchMetrics:
    """Counters and gauges."""

    def __init__(self, registry: CollectorRegistry, at_work: Callable[[], int], limit: Callable[[], int]) -> None:
        self.answers = Counter(
            "pointsman_batch_answers", "Answers to lines, by what followed from them", ["verdict"], registry=registry
        )
        self.batches = Counter(
            "pointsman_batch_ended", "Batches that this replica ended, by status", ["status"], registry=registry
        )
        self.taken_over = Counter(
            "pointsman_batch_taken_over",
            "Batches that this replica took over from one that fell silent",
            registry=registry,
        ).labels()
        self.items = Counter(
            "pointsman_batch_items",
            "Items of work queues that this replica gave a result, by the code of their error or `answered`",
            ["result"],
            registry=registry,
        )
        self.callbacks = Counter(
            "pointsman_batch_callbacks", "Results sent to callbacks, by outcome", ["outcome"], registry=registry
        )
        self.store_failures = Counter(
            "pointsman_batch_store_failures",
            "Calls to the store of files' content that failed",
            registry=registry,
        )
        Gauge("pointsman_batch_lines_at_work", "Requests of lines that are open", registry=registry).set_function(
            at_work
        )
        Gauge(
            "pointsman_batch_lines_limit", "Most requests of lines that may be open now", registry=registry
        ).set_function(limit)
