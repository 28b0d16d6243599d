"""The metrics of several services as one exposition."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from pointsman_runtime.telling.metrics_registry import MetricsRegistry


def test_families_of_one_name_are_one_family_and_equal_samples_are_summed() -> None:
    whole = MetricsRegistry()
    Gauge("own_figure", "Of the process.", registry=whole.own).set(7)
    for number in (1, 2):
        part = CollectorRegistry()
        counter = Counter("requests", "Requests.", ["edge"], registry=part)
        counter.labels("all").inc(number)
        counter.labels(f"edge-{number}").inc()
        Histogram("seconds", "Time.", buckets=[1.0], registry=part).observe(0.5)
        whole.add(part)
    lines = generate_latest(whole).decode().splitlines()
    assert len([line for line in lines if line.startswith("# TYPE requests_total")]) == 1
    assert {
        'requests_total{edge="all"} 3.0',
        'requests_total{edge="edge-1"} 1.0',
        'requests_total{edge="edge-2"} 1.0',
        'seconds_bucket{le="1.0"} 2.0',
        "seconds_count 2.0",
        "own_figure 7.0",
    } <= set(lines)


def test_two_scrapes_say_the_same() -> None:
    whole = MetricsRegistry()
    for _ in range(2):
        part = CollectorRegistry()
        Counter("requests", "Requests.", registry=part).inc()
        whole.add(part)
    assert generate_latest(whole) == generate_latest(whole)
