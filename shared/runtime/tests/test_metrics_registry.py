"""The metrics of several services as one exposition."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from pointsman_runtime.telling import counting
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


def test_the_sum_of_a_bucket_keeps_the_exemplar_of_a_part() -> None:
    whole = MetricsRegistry()
    for number in range(3):
        part = CollectorRegistry()
        took = counting.Histogram("took", "Time.", buckets=[1.0], registry=part)
        if number == 1:
            took.labels().observe_sampled(0.5, f"00-{'ab' * 16}-{'cd' * 8}-01")
        else:
            took.observe(0.5)
        whole.add(part)
    [bucket, _, *_] = next(iter(whole.collect())).samples
    assert bucket.value == 3.0
    assert bucket.exemplar is not None
    assert bucket.exemplar.labels["trace_id"] == "ab" * 16
