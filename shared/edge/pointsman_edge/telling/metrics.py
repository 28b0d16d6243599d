"""The edge's Prometheus metrics. Plain numbers that a scrape reads: a library's counter costs a lock at every step."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_contracts.response import Seam
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_runtime.telling.counting import Distribution
from pointsman_runtime.telling.logs import Log

BOUNDS_S: Final = (
    0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of the histograms' buckets, in seconds."""

_log = Log("edge")


class EdgeMetrics(Collector):
    """Counts requests by how they ended."""

    def __init__(self, registry: CollectorRegistry, open_requests: Callable[[], int] = lambda: 0) -> None:
        """`open_requests`: the number of requests that haven't ended."""
        self._open = open_requests
        self.refused_connections: Counter[str] = Counter()
        """Connections closed before they brought a request, by reason."""
        self.failed_attempts: Counter[str] = Counter()
        """Attempts that an endpoint didn't answer, by outcome."""
        self.prefill_legs: Counter[str] = Counter()
        """Prompts that another engine was to compute, by outcome of that leg."""
        self.cascades: Counter[tuple[str, str]] = Counter()
        """Answers of cascades, by model and verdict."""
        self.resumed: Counter[str] = Counter()
        """Seams of streams that another engine continued, by form."""
        self.unresumed: Counter[str] = Counter()
        """Streams that broke off and weren't continued, by reason."""
        self.drain_moves: Counter[str] = Counter()
        """Requests that left a drained engine, by how far their answers were."""
        self.drain_stays: Counter[str] = Counter()
        """Requests that couldn't leave one, by reason."""
        self._computed_again = 0
        self._gap = Distribution(BOUNDS_S)
        self._dropped_edits: Counter[str] = Counter()
        self._exhausted: Counter[str] = Counter()
        self.unsettled = 0
        """Requests whose usage and cost couldn't be settled."""
        self._requests: Counter[tuple[str, int, str | None, str]] = Counter()
        """By API, status, outcome and level."""
        self._decided = Distribution(BOUNDS_S)
        self._first_byte = Distribution(BOUNDS_S)
        self._others: list[tuple[str, str, Callable[[], int]]] = []
        registry.register(self)

    def read(self, name: str, text: str, value: Callable[[], int]) -> None:
        """Expose a counter that is kept elsewhere as `pointsman_edge_<name>_total`."""
        self._others.append((f"pointsman_edge_{name}", text, value))

    def drop_header_edit(self, name: str) -> None:
        """Count a dropped edit of a request header: only the edge writes the header, or its name is invalid."""
        if name not in self._dropped_edits:
            _log.warning("header_edit_dropped", header=name, hint="a processor, stage or scheduling plugin sets it")
        self._dropped_edits[name] += 1

    def run_out(self, resource: str) -> None:
        """Count a request that the edge's own process had no room for."""
        if resource not in self._exhausted:
            _log.error("exhausted", resource=resource, hint="further ones are counted alone; see ulimit and the memory")
        self._exhausted[resource] += 1

    def count_seam(self, seam: Seam) -> None:
        """Another engine has begun to continue a stream."""
        self.resumed[seam.form] += 1
        self._computed_again += seam.computed_again
        self._gap.observe(seam.gap_ms / 1000)

    def count_request(self, record: RequestRecord, traceparent: str | None = None) -> None:
        """One request has ended. `traceparent`: of its span, when that was exported; histograms link to it."""
        self._requests[record.api.name, record.status, record.outcome, record.level] += 1
        if traceparent is not None:
            self._observe_sampled(record, traceparent)
            return
        if record.decision is not None:
            self._decided.observe(record.decided_s)
        if record.first_byte_at is not None:
            self._first_byte.observe(record.first_byte_at - record.received_at)

    def _observe_sampled(self, record: RequestRecord, traceparent: str) -> None:
        if record.decision is not None:
            self._decided.observe_sampled(record.decided_s, traceparent)
        if record.first_byte_at is not None:
            self._first_byte.observe_sampled(record.first_byte_at - record.received_at, traceparent)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        requests = CounterMetricFamily(
            "pointsman_edge_requests", "Requests by API, status and outcome", labels=["api", "status", "outcome"]
        )
        ended: Counter[tuple[str, int, str | None]] = Counter()
        levels: Counter[str] = Counter()
        for (api, status, outcome, level), count in self._requests.items():
            ended[api, status, outcome] += count
            levels[level] += count
        for (api, status, outcome), count in ended.items():
            requests.add_metric([api, str(status), outcome or ""], count)
        yield requests
        yield GaugeMetricFamily("pointsman_edge_open_requests", "Requests that haven't ended", self._open())
        yield _by("level", "pointsman_edge_decisions", "Requests by the level that they were decided at", levels)
        yield _by(
            "outcome",
            "pointsman_edge_failed_attempts",
            "Attempts that an endpoint didn't answer",
            self.failed_attempts,
        )
        yield _by(
            "outcome",
            "pointsman_edge_prefill_legs",
            "Prompts that another engine was to compute for the one that answers",
            self.prefill_legs,
        )
        answers = CounterMetricFamily(
            "pointsman_edge_cascade_answers", "Answers of cascades, by their judgement", labels=["model", "verdict"]
        )
        for (model, verdict), count in self.cascades.items():
            answers.add_metric([model, verdict], count)
        yield answers
        yield _by(
            "form", "pointsman_edge_resumed", "Broken streams that another engine continued, by form", self.resumed
        )
        yield _by(
            "reason",
            "pointsman_edge_unresumed",
            "Streams that broke off and weren't continued, by reason",
            self.unresumed,
        )
        yield _by(
            "answer",
            "pointsman_edge_drain_moves",
            "Requests that moved off an engine whose time to drain was over, by how far their answers were",
            self.drain_moves,
        )
        yield _by(
            "reason",
            "pointsman_edge_drain_stays",
            "Requests that stayed on an engine whose time to drain was over",
            self.drain_stays,
        )
        yield CounterMetricFamily(
            "pointsman_edge_resume_tokens",
            "Prompt and answer tokens that engines got again to continue a stream",
            self._computed_again,
        )
        yield _by(
            "reason",
            "pointsman_edge_refused_connections",
            "Connections closed before they brought a request",
            self.refused_connections,
        )
        yield _by(
            "header",
            "pointsman_edge_dropped_header_edits",
            "Dropped edits of request headers: only the edge writes the header, or its name is invalid",
            self._dropped_edits,
        )
        yield _by(
            "resource",
            "pointsman_edge_exhausted",
            "Requests refused because the process had run out of descriptors, memory or ports",
            self._exhausted,
        )
        yield CounterMetricFamily(
            "pointsman_edge_unsettled", "Requests whose usage and cost couldn't be settled", self.unsettled
        )
        for name, text, value in self._others:
            yield CounterMetricFamily(name, text, value())
        yield _durations(
            "pointsman_edge_decision_seconds", "From receiving a request to having its decision", self._decided
        )
        yield _durations(
            "pointsman_edge_first_byte_seconds",
            "From receiving a request to the first byte of its answer",
            self._first_byte,
        )
        yield _durations(
            "pointsman_edge_resume_gap_seconds",
            "From the break of a stream until another engine's rest of it began",
            self._gap,
        )


def _by(label: str, name: str, text: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _durations(name: str, text: str, seconds: Distribution) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=seconds.buckets(), sum_value=seconds.total)
