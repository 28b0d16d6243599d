"""Prometheus metrics of finding endpoints."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_metrics_collector.domain.finding import EngineSource


class DiscoveryMetrics(Collector):
    """Series of the pools of which `findings()` knows at the scrape."""

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
