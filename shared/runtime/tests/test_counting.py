"""Counters and histograms of our own are exposed as prometheus-client's would be."""

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,  # pyright: ignore[reportUnknownVariableType] - no type
)

from pointsman_runtime.telling.counting import Counter, Histogram

prometheus_client.disable_created_metrics()
BOUNDS = (0.001, 0.5, 1.0, 30.0)
LABELS = st.tuples(st.sampled_from(["a", "b"]), st.text(max_size=3))


@given(st.lists(st.tuples(LABELS, st.floats(0, 1e6))))
def test_a_counter_reads_as_prometheus_clients(added: list[tuple[tuple[str, str], float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = Counter("requests", "Requests", ["pool", "outcome"], registry=ours)
    expected = prometheus_client.Counter("requests", "Requests", ["pool", "outcome"], registry=theirs)
    for labels, amount in added:
        counter.labels(*labels).inc(amount)
        expected.labels(*labels).inc(amount)
    assert generate_latest(ours) == generate_latest(theirs)


@given(st.lists(st.tuples(LABELS, st.one_of(st.sampled_from(BOUNDS), st.floats(0, 100)))))
def test_a_histogram_reads_as_prometheus_clients(observed: list[tuple[tuple[str, str], float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("took", "Time", ["pool", "outcome"], registry=ours, buckets=BOUNDS)
    expected = prometheus_client.Histogram("took", "Time", ["pool", "outcome"], registry=theirs, buckets=BOUNDS)
    for labels, value in observed:
        histogram.labels(*labels).observe(value)
        expected.labels(*labels).observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_metrics_without_labels_are_zero_before_anything_happens() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter, histogram = Counter("requests", "R", registry=ours), Histogram("took", "T", registry=ours)
    prometheus_client.Counter("requests", "R", registry=theirs)
    prometheus_client.Histogram("took", "T", registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
    counter.inc()
    histogram.observe(2.0)
    assert ours.get_sample_value("requests_total") == 1.0
    assert ours.get_sample_value("took_bucket", {"le": "2.5"}) == 1.0


def test_a_wrong_number_of_labels_is_refused() -> None:
    counter = Counter("requests", "R", ["pool"], registry=CollectorRegistry())
    with pytest.raises(ValueError, match="requests has the labels"):
        counter.labels("a", "b")


TRACEPARENTS = st.builds(
    "00-{:032x}-{:016x}-01".format, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)
)  # fmt: skip


@given(st.lists(st.tuples(st.floats(0, 100), st.none() | TRACEPARENTS), min_size=1))
def test_each_bucket_links_to_its_latest_sampled_request_and_counts_all(
    observed: list[tuple[float, str | None]],
) -> None:
    registry, plain = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("took", "Time", registry=registry, buckets=BOUNDS)
    without = Histogram("took", "Time", registry=plain, buckets=BOUNDS)
    expected: dict[str, tuple[dict[str, str], float]] = {}
    for value, traceparent in observed:
        without.observe(value)
        if traceparent is None:
            histogram.observe(value)
        else:
            histogram.labels().observe_sampled(value, traceparent)
            bound = next((str(bound) for bound in BOUNDS if value <= bound), "+Inf")
            expected[bound] = ({"trace_id": traceparent[3:35], "span_id": traceparent[36:52]}, value)
    assert generate_latest(registry) == generate_latest(plain)
    encode, _ = choose_encoder("application/openmetrics-text")
    [family] = openmetrics_families(encode(registry).decode())
    found = {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert found == expected
