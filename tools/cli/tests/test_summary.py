"""The numbers at the end of the demo."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pointsman_cli.demo.client import ClientAnswer
from pointsman_cli.demo.summary import Measures, percentile, summary
from pointsman_contracts.response import ResponseCompleted, Usage


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_the_share_does_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    smaller = [value for value in values if value < found]
    assert len(smaller) < math.ceil(share * len(values))


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))


def _answer(kind: str, *, first: float | None = None, took: float = 1.0, problem: str = "") -> ClientAnswer:
    return ClientAnswer(kind, 503 if problem else 200, "text", first, took, 1000, 600, 50, problem)


def _completed(worker: str, outcome: str = "ok") -> ResponseCompleted:
    return ResponseCompleted(
        request_id="r", source="edge", sequence=1, at_ms=0, pool="p", worker=worker, status=200, outcome=outcome,
        decided_ms=1.5, usage=Usage(prompt_tokens=1000, completion_tokens=50, cached_tokens=600),
    )  # fmt: skip


def _shown(measures: Measures, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary(measures, 10.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_summary_shows_latency_reuse_and_the_engines_that_served() -> None:
    measures = Measures()
    measures.add_answer(_answer("chat", first=0.080))
    measures.add_answer(_answer("chat", first=0.120, took=2.0))
    measures.add_answer(_answer("completion"))
    for worker in ("engine-1", "engine-2", "engine-1"):
        measures.add_completion(_completed(worker))
    text = _shown(measures)
    assert "3 requests in 10 s, none failed; 15 tokens/s out" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("  ")}
    assert rows["chat"][1:] == ["2", "80", "ms", "120", "ms", "1,000", "ms", "2,000", "ms"]
    assert rows["completion"][1:] == ["1", "-", "-", "1,000", "ms", "1,000", "ms"]
    assert "60% of 3,000 prompt tokens came from an engine's KV cache" in text
    assert "engine-1 2, engine-2 1" in text


def test_a_narrow_terminal_shows_every_figure_whole() -> None:
    measures = Measures()
    for kind in ("completion", "model: auto"):
        measures.add_answer(_answer(kind, first=1.5, took=12.5))
    assert "…" not in _shown(measures, width=80)


def test_failures_are_counted_and_named() -> None:
    measures = Measures()
    measures.add_answer(_answer("chat", first=0.1))
    for _ in range(2):
        measures.add_answer(_answer("chat", problem="No live instance of scheduler"))
    text = _shown(measures)
    assert "2 failed" in text
    assert "2 × 503: No live instance of scheduler" in text


def test_only_good_answers_count_as_served() -> None:
    measures = Measures()
    measures.add_completion(_completed("engine-1", outcome="engine_error"))
    assert not measures.served


def test_a_summary_of_nothing_is_still_a_summary() -> None:
    assert "0 requests" in _shown(Measures())


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_one_value_is_every_percentile(share: float) -> None:
    assert percentile([3.0], share) == 3.0
