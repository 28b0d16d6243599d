"""The family reader says what a whole parse says."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pointsman_engines.exposition import Exposition, Sample, UnreadableMetrics

NAMES = ("e:running", "e:running_total", "e:run", "running", "e:running_requests")

label_names = st.sampled_from(["model_name", "engine", "le_", "a"])
label_values = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n}{,= #'), max_size=12)
label_sets = st.dictionaries(label_names, label_values, max_size=3)
numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 2**40).map(float)


@st.composite
def families(draw: st.DrawFn) -> list[Metric]:
    """Families under names that are prefixes of one another."""
    made: list[Metric] = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)):
        if draw(st.booleans()) and name.endswith("_total"):
            family: Metric = CounterMetricFamily(name, "x " + draw(st.sampled_from(["", name, 'a"b\\c'])))
        else:
            family = GaugeMetricFamily(name, draw(st.sampled_from([name + " 1", name + "{", ""])))
        for labels in draw(st.lists(label_sets, max_size=3)):
            family.add_sample(name, labels, draw(numbers), draw(st.none() | st.integers(1, 2**31)))
        made.append(family)
    return made


class Fixed(Collector):
    def __init__(self, made: Iterable[Metric]) -> None:
        self._made = list(made)

    def collect(self) -> Iterable[Metric]:
        return self._made


def exposed(made: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(Fixed(made))
    return generate_latest(registry)


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@given(families())
def test_every_family_is_read_as_the_whole_parser_reads_it(made: list[Metric]) -> None:
    text = exposed(made)
    parsed = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    reader = Exposition(text)
    for name in NAMES:
        expected = [(sample.labels, sample.value) for sample in parsed if sample.name == name]
        found = [(sample.labels(), sample.value) for sample in reader.find_samples(name.encode())]
        assert [labels for labels, _ in found] == [labels for labels, _ in expected]
        assert all(same(a[1], b[1]) for a, b in zip(found, expected, strict=True))


def test_a_histogram_between_them_does_not_hide_a_family() -> None:
    histogram = HistogramMetricFamily("e:run", "x")
    histogram.add_metric([], [("1", 3), ("+Inf", 4)], 2.5)
    gauge = GaugeMetricFamily("e:running", "x", 7)
    reader = Exposition(exposed([histogram, gauge]))
    assert reader.find_samples(b"e:running") == [Sample(7.0, b"")]
    assert [sample.value for sample in reader.find_samples(b"e:run_bucket")] == [3.0, 4.0]


@pytest.mark.parametrize(
    ("line", "value", "labels"),
    [
        (b"x 1", 1.0, {}),
        (b"x\t1.5e3 1700000000000", 1500.0, {}),
        (b'x{a="b"} 2 # {trace_id="t"} 0.67', 2.0, {"a": "b"}),
        (b'x {a="b",} +Inf', math.inf, {"a": "b"}),
        (b'x{a="}{ 9"} 3\r', 3.0, {"a": "}{ 9"}),
        (b'x{a="\\"\\\\n\\n",b=""} 4', 4.0, {"a": '"\\n\n', "b": ""}),
        (b"x{} 5", 5.0, {}),
    ],
)
def test_every_line_that_the_format_allows_is_read(line: bytes, value: float, labels: dict[str, str]) -> None:
    for text in (line, b"# HELP x x 9\n# TYPE x gauge\n" + line + b"\ny 1\n"):
        (sample,) = Exposition(text).find_samples(b"x")
        assert (sample.value, sample.labels()) == (value, labels)


@pytest.mark.parametrize("line", [b"x ", b'x{secret="b"}', b'x{secret="b 1', b"x{} secret", b'x{secret="b"} 1e'])
def test_a_malformed_sample_is_an_error_that_names_the_family_and_quotes_nothing(line: bytes) -> None:
    with pytest.raises(UnreadableMetrics, match=r"^malformed sample of x$"):
        Exposition(line).find_samples(b"x")


def test_a_family_that_is_not_there_has_no_samples() -> None:
    for text in (b"", b"x", b"# HELP x x 9", b"xy 1\n", b"# x 1\n"):
        assert Exposition(text).find_samples(b"x") == []


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    reader = Exposition(b"x " + noise + b'\nx{a="b"} ' + noise)
    try:
        for sample in reader.find_samples(b"x"):
            sample.labels()
    except UnreadableMetrics:
        pass
