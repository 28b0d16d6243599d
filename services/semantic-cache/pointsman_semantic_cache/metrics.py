"""Metrics of the cache."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from pointsman_runtime.telling.counting import Count, Counter, Histogram
from pointsman_runtime.telling.plan_labels import PlanLabels
from pointsman_semantic_cache.domain.memory import MemoryStore

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25)


class CacheMetrics:
    """Metrics of one process."""

    def __init__(self, registry: CollectorRegistry, memory: MemoryStore) -> None:
        self._lookups: Final = Counter(
            "pointsman_cache_lookups",
            "Requests by result (hit, semantic, miss, bypass, failed) and the client's plan.",
            ["cache", "result", "plan"],
            registry=registry,
        )
        self._results: Final[dict[tuple[str, str, str], Count]] = {}
        self._plans: Final = PlanLabels()
        self._refused: Final = Counter(
            "pointsman_cache_gate_refusals",
            "Close questions that the gate rejected, by the difference that it found.",
            ["cache", "difference"],
            registry=registry,
        )
        self._answers: Final = Counter(
            "pointsman_cache_answers",
            "Answers by the reason for not keeping them (`kept`: they are kept) and the client's plan.",
            ["cache", "outcome", "plan"],
            registry=registry,
        )
        self._evicted: Final = Counter(
            "pointsman_cache_evicted", "Answers that were evicted to make room.", ["cache"], registry=registry
        )
        self._embedding: Final = Histogram(
            "pointsman_cache_embedding_seconds", "Time to embed a question.", buckets=_BUCKETS, registry=registry
        )
        self._gate: Final = Histogram(
            "pointsman_cache_gate_seconds",
            "Time of a model to compare a question with close ones.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._gate_failures: Final = Counter(
            "pointsman_cache_gate_failures",
            "Requests without a match since the gate's model failed or was too slow.",
            ["cache"],
            registry=registry,
        )
        entries = Gauge("pointsman_cache_entries", "Answers kept in this process.", registry=registry)
        entries.set_function(lambda: len(memory))
        held = Gauge("pointsman_cache_bytes", "Bytes of answers kept in this process.", registry=registry)
        held.set_function(lambda: memory.held_in_all)

    def looked_up(self, cache: str, result: str, plan: str) -> None:
        """Count a lookup; `plan` is the client's, empty where it is unknown."""
        key = (cache, result, self._plans.label_of(plan))
        counter = self._results.get(key)
        if counter is None:
            counter = self._results[key] = self._lookups.labels(*key)
        counter.total += 1

    def count_refusal(self, cache: str, difference: str) -> None:
        """The gate refused a close question."""
        self._refused.labels(cache, difference).inc()

    def gate_failed(self, cache: str) -> None:
        """The gate's model failed, or took too long."""
        self._gate_failures.labels(cache).inc()

    def count_kept(self, cache: str, why_not: str | None, plan: str) -> None:
        """An answer came; None: it was kept. `plan` as in `looked_up`."""
        outcome = "kept" if why_not is None else why_not.replace(" ", "_")
        self._answers.labels(cache, outcome, self._plans.label_of(plan)).inc()

    def count_evicted(self, cache: str, count: int) -> None:
        """Count evicted answers."""
        if count:
            self._evicted.labels(cache).inc(count)

    @contextmanager
    def time_embedding(self) -> Generator[None]:
        began = time.perf_counter()
        yield
        self._embedding.observe(time.perf_counter() - began)

    @contextmanager
    def time_gate(self) -> Generator[None]:
        """Times the comparisons of a model for one request."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._gate.observe(time.perf_counter() - began)
