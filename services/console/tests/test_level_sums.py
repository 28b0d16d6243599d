"""The page of service levels: shares by class, tenant and model."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from pointsman_console.domain.level_sums import MOST_ROWS, LevelSums
from pointsman_contracts.identity import Identity
from pointsman_contracts.response import RequestRejected, ResponseCompleted, Usage
from pointsman_contracts.service_level import ServicePromise


def ended(level: str, tenant: str, kept: bool | None) -> ResponseCompleted:
    promise = ServicePromise(service_class=level, ttft_ms=800.0, predicted_ttft_ms=640.0)
    return ResponseCompleted(
        request_id="r", source="e", sequence=1, at_ms=0, pool="p", model="m", status=200, outcome="ok", stream=True,
        ttft_ms=702.0, promise=promise if level else None, kept=kept, identity=Identity(tenant=tenant),
        usage=Usage(prompt_tokens=10, completion_tokens=5),
    )  # fmt: skip


def rows(sums: LevelSums) -> list[dict[str, float | str | None]]:
    return cast("list[dict[str, float | str | None]]", sums.list_rows())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from((True, False, None)))))
def test_each_answer_counts_once_in_its_row(ends: list[tuple[str, str, bool | None]]) -> None:
    sums = LevelSums()
    for each in ends:
        sums.count_event(ended(*each))
    for row in rows(sums):
        mine = [kept for level, tenant, kept in ends if (level, tenant) == (row["class"], row["tenant"])]
        assert (row["kept"], row["missed"], row["unknown"]) == (mine.count(True), mine.count(False), mine.count(None))
        assert row["tokens"] == 5 * mine.count(True)
        assert (row["promised_ms"], row["predicted_ms"], row["got_ms"]) == (800.0, 640.0, 702.0)


def test_the_rows_are_bounded_and_a_refusal_counts() -> None:
    sums = LevelSums()
    for number in range(MOST_ROWS + 50):
        sums.count_event(ended("c", f"tenant-{number}", kept=True))
    sums.count_event(ended("", "t", kept=True))
    assert len(rows(sums)) == MOST_ROWS + 1
    assert sum(cast("int", row["kept"]) for row in rows(sums)) == MOST_ROWS + 50
    refused = LevelSums()
    refused.count_event(
        RequestRejected(
            request_id="r", source="e", sequence=1, at_ms=0, status=429, stage="scheduler", reason="late",
            code="slo_unattainable", model="m",
        )
    )  # fmt: skip
    assert [(row["refused"], row["model"]) for row in rows(refused)] == [(1, "m")]
