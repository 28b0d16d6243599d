"""The edge's histograms link to the traces of sampled requests, and cost other requests nothing."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType

from prometheus_client import CollectorRegistry

from pointsman_apis import named
from pointsman_core.config import load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_runtime.telling.counting import Distribution
from pointsman_testing import builders

POLICY = compile_policy(load({}), 1)
TRACEPARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


def record() -> RequestRecord:
    """A request that was decided after 1.5 ms and answered after 30 ms."""
    made = RequestRecord("r", named("completions"), POLICY, 100.0)
    made.record_decision(builders.decision(), 100.0015)
    made.first_byte_at = 100.03
    made.end("ok", 200)
    return made


def calls(work: Callable[[], None]) -> Counter[CodeType]:
    """How often each Python function is called, without `work` itself."""
    found: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is not work.__code__:
            found[frame.f_code] += 1

    before = sys.getprofile()
    gc.disable()  # hypothesis has a function that is called at each collection
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


def test_a_request_that_is_not_sampled_makes_no_call_for_exemplars() -> None:
    metrics, ended = EdgeMetrics(CollectorRegistry()), record()
    metrics.count_request(ended)
    plain = calls(lambda: metrics.count_request(ended, None))
    assert plain == {EdgeMetrics.count_request.__code__: 1, Distribution.observe.__code__: 2}
    assert calls(lambda: metrics.count_request(ended, TRACEPARENT)).total() > plain.total()


def test_both_histograms_link_to_the_span_of_a_sampled_request() -> None:
    registry = CollectorRegistry()
    metrics = EdgeMetrics(registry)
    metrics.count_request(record())
    metrics.count_request(record(), TRACEPARENT)
    links = {
        (sample.name, sample.labels["le"]): sample.exemplar.labels
        for family in registry.collect()
        for sample in family.samples
        if sample.exemplar is not None
    }
    span = {"trace_id": "ab" * 16, "span_id": "cd" * 8}
    assert links == {
        ("pointsman_edge_decision_seconds_bucket", "0.002"): span,
        ("pointsman_edge_first_byte_seconds_bucket", "0.05"): span,
    }
    assert registry.get_sample_value("pointsman_edge_decision_seconds_count") == 2.0
