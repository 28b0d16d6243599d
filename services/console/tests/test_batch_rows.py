"""The page of batches: progress, pace, and when each will have ended."""

from msgspec.structs import replace

from pointsman_console.domain.batch_rows import foresee_end, list_batch_rows
from pointsman_contracts.batch import BatchRecord, LineProblem

HOUR_MS = 3_600_000
RUNNING = BatchRecord(
    id="batch_1", api="openai", owner="tenant:acme", endpoint="/v1/chat/completions", input_file="file-1",
    created_ms=0, expires_ms=24 * HOUR_MS, status="in_progress", in_progress_ms=HOUR_MS,
    total=100, completed=20, failed=5,
)  # fmt: skip


def test_a_batch_ends_at_the_pace_so_far() -> None:
    assert foresee_end(RUNNING, 2 * HOUR_MS) == 5 * HOUR_MS


def test_without_a_result_or_a_runner_nothing_is_foreseen() -> None:
    assert foresee_end(replace(RUNNING, completed=0, failed=0), 2 * HOUR_MS) is None
    assert foresee_end(replace(RUNNING, status="validating", in_progress_ms=None), 2 * HOUR_MS) is None
    assert foresee_end(replace(RUNNING, status="completed", ended_ms=HOUR_MS), 2 * HOUR_MS) is None


def test_a_clock_that_is_behind_foresees_no_end_in_the_past() -> None:
    assert foresee_end(RUNNING, 0) == 0


def test_running_batches_come_first_and_one_that_will_expire_is_marked() -> None:
    ended = replace(RUNNING, id="batch_0", status="completed", completed=95, ended_ms=HOUR_MS)
    late = replace(RUNNING, id="batch_2", expires_ms=3 * HOUR_MS)
    document = list_batch_rows([ended, late, RUNNING], 2 * HOUR_MS)
    assert isinstance(document, dict)
    assert (document["count"], document["running"]) == (3, 2)
    rows = document["rows"]
    assert isinstance(rows, list)
    found = {row["id"]: row for row in rows if isinstance(row, dict)}
    assert [*found] == ["batch_1", "batch_2", "batch_0"]
    assert [found[name]["late"] for name in found] == [False, True, False]
    assert (found["batch_1"]["owner"], found["batch_1"]["share"], found["batch_1"]["done"]) == ("acme", 0.25, 25)
    assert found["batch_0"]["ends_ms"] is None


def test_a_refused_batch_names_the_line_that_was_wrong() -> None:
    problem = LineProblem(code="invalid_json_line", message="No JSON.", line=2)
    document = list_batch_rows([replace(RUNNING, status="failed", problems=(problem,))], 0)
    assert isinstance(document, dict)
    assert isinstance(document["rows"], list)
    [row] = document["rows"]
    assert isinstance(row, dict)
    assert row["problem"] == "Line 2: No JSON."
