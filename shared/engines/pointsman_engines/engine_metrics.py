"""Prometheus metrics of reading engines and reporting on them: plain counters, read at the scrape."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_engines.speaker import EngineSpeaker
from pointsman_engines.status import reason_of

_LABELS = ["pool", "worker"]


class EngineMetrics(Collector):
    """Series of the engines that `speakers()` names at the time; they go when an engine goes."""

    def __init__(self, speakers: Callable[[], Iterable[EngineSpeaker]]) -> None:
        self._speakers = speakers

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        reachable = GaugeMetricFamily("pointsman_engine_reachable", "1 while it accepts connections", labels=_LABELS)
        ready = GaugeMetricFamily("pointsman_engine_ready", "1 while nothing says that it isn't ready", labels=_LABELS)
        load_known = GaugeMetricFamily(
            "pointsman_engine_load_known",
            "1 while its load is known; else schedulers use their own counts",
            labels=_LABELS,
        )
        registered = GaugeMetricFamily("pointsman_engine_registered", "1 while it is registered", labels=_LABELS)
        stored = GaugeMetricFamily(
            "pointsman_engine_stored",
            "1 while the bucket stores its registration, which only starting services read",
            labels=_LABELS,
        )
        readings = CounterMetricFamily(
            "pointsman_engine_readings", "Readings of the engine's metrics, by outcome", labels=[*_LABELS, "outcome"]
        )
        seconds = CounterMetricFamily(
            "pointsman_engine_reading_seconds", "Time that answered readings took", labels=_LABELS
        )
        late = CounterMetricFamily(
            "pointsman_engine_readings_late", "Answers with the engine's metrics that came late", labels=_LABELS
        )
        findings = GaugeMetricFamily(
            "pointsman_engine_findings", "1 for each fault of the engine that doctor reports", labels=[*_LABELS, "kind"]
        )
        reports = CounterMetricFamily(
            "pointsman_engine_load_reports", "Load reports, by whether the bus took them", labels=[*_LABELS, "outcome"]
        )
        for speaker in self._speakers():
            tally = speaker.watch.tally
            name = [speaker.worker.pool, speaker.worker.worker]
            late.add_metric(name, tally.late)
            for outcome in ("answered", "refused", "hung", "failed", "unreadable"):
                readings.add_metric([*name, outcome], getattr(tally, outcome))
            seconds.add_metric(name, tally.spent_s)
            for voice in speaker.voices:
                name, status = [voice.worker.pool, voice.worker.worker], voice.status
                reachable.add_metric(name, float(status.reachable))
                ready.add_metric(name, float(status.reachable and not reason_of(status)))
                load_known.add_metric(name, float(status.known_load is not None))
                for finding in voice.registrar.findings:
                    findings.add_metric([*name, finding.kind], 1.0)
                registered.add_metric(name, float(voice.registrar.problem is None))
                stored.add_metric(name, float(voice.registrar.entry.problem is None))
                reports.add_metric([*name, "sent"], voice.loads.sent)
                reports.add_metric([*name, "unsent"], voice.loads.unsent)
        yield from (reachable, ready, load_known, registered, stored, readings, seconds, late, findings, reports)
