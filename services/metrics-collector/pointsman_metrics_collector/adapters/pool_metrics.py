"""Pools and workers for Prometheus, read from the table at the scrape: a report costs nothing, and the series of a
worker that left are gone."""

from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_contracts.pool import WorkerView
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.domain.snapshot import saturation

STATES: Final = ("serving", "not_ready", "draining", "asleep", "unreachable", "silent")
_LABELS: Final = ["pool", "worker"]


class WorkerMetrics(Collector):
    """`pools()` gives every pool and its workers at the time; `changes` counts by pool and kind of change."""

    def __init__(
        self,
        pools: Callable[[], Iterable[tuple[str, tuple[WorkerView, ...]]]],
        changes: Mapping[tuple[str, str], int],
    ) -> None:
        self._pools = pools
        self._changes = changes

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        full = GaugeMetricFamily(
            "pointsman_pool_saturation", "Mean load of serving workers; 1 is saturated", labels=["pool"]
        )
        workers = GaugeMetricFamily("pointsman_pool_workers", "Workers of the pool, by state", labels=["pool", "state"])
        state = GaugeMetricFamily(
            "pointsman_worker_state", "1 for the state that the worker is in", labels=[*_LABELS, "state"]
        )
        running = GaugeMetricFamily(
            "pointsman_worker_running_requests", "Sequences in the engine's running batch", labels=_LABELS
        )
        waiting = GaugeMetricFamily(
            "pointsman_worker_waiting_requests", "Requests queued in the engine", labels=_LABELS
        )
        kv_usage = GaugeMetricFamily(
            "pointsman_worker_kv_usage_ratio", "Used part of the engine's KV cache", labels=_LABELS
        )
        age = GaugeMetricFamily(
            "pointsman_worker_report_age_seconds", "Age of the worker's last load report", labels=_LABELS
        )
        unknown = GaugeMetricFamily(
            "pointsman_worker_load_unknown", "1 while schedulers use their own counts of it", labels=_LABELS
        )
        findings = GaugeMetricFamily(
            "pointsman_worker_findings", "1 for each fault that doctor reports of it", labels=[*_LABELS, "kind"]
        )
        for pool, views in self._pools():
            full.add_metric([pool], saturation(views))
            states = Count(view.state for view in views)
            for name in STATES:
                workers.add_metric([pool, name], states[name])
            for view in views:
                labels = [pool, view.worker]
                for name in STATES:
                    state.add_metric([*labels, name], float(view.state == name))
                unknown.add_metric(labels, float(bool(view.load_unknown)))
                for finding in view.findings:
                    findings.add_metric([*labels, finding.kind], 1.0)
                if view.age_ms < 0 or view.load_unknown:
                    continue
                running.add_metric(labels, view.running)
                waiting.add_metric(labels, view.waiting)
                kv_usage.add_metric(labels, view.kv_usage)
                age.add_metric(labels, view.age_ms / 1000)
        changes = CounterMetricFamily(
            "pointsman_worker_changes", "Workers that joined, fell silent, and left", labels=["pool", "change"]
        )
        for (pool, change), count in self._changes.items():
            changes.add_metric([pool, change], count)
        yield from (full, workers, state, running, waiting, kv_usage, age, unknown, findings, changes)


class DiscoveryMetrics(Collector):
    """Series of the pools that `findings()` returns at the scrape."""

    def __init__(self, findings: Callable[[], Mapping[str, EngineSource]]) -> None:
        self._findings = findings

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        endpoints = GaugeMetricFamily(
            "pointsman_discovered_endpoints", "Endpoints that the cluster or a file names", labels=["pool", "kind"]
        )
        current = GaugeMetricFamily(
            "pointsman_discovery_current", "0 while what is known of them may be old", labels=["pool", "kind"]
        )
        for pool, finding in self._findings().items():
            endpoints.add_metric([pool, finding.kind], len(finding.engines))
            current.add_metric([pool, finding.kind], float(not finding.problem))
        yield from (endpoints, current)
