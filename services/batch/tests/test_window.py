"""Lines that risk to expire rise in priority."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_batch.domain.window import is_batch_at_risk, is_item_at_risk

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("done", "passed_h", "at_risk"),
    [(0, 1.0, False), (0, 13.0, True), (500, 12.0, True), (600, 12.0, False), (1, 0.5, False), (1000, 23.9, False)],
)
def test_a_batch_of_a_thousand_lines_and_a_day_is_at_risk_at_this_pace(
    done: int, passed_h: float, at_risk: bool
) -> None:
    now_ms = round(passed_h * HOUR_MS)
    assert is_batch_at_risk(done=done, total=1000, begun_ms=0, expires_ms=24 * HOUR_MS, now_ms=now_ms) is at_risk


@given(done=st.integers(0, 999), more=st.integers(0, 999), now_ms=st.integers(0, 24 * HOUR_MS))
def test_a_batch_that_has_done_more_is_never_the_one_at_risk(done: int, more: int, now_ms: int) -> None:
    def risk(lines: int) -> bool:
        return is_batch_at_risk(done=lines, total=1000, begun_ms=0, expires_ms=24 * HOUR_MS, now_ms=now_ms)

    assert risk(done) or not risk(min(1000, done + more)) or not done


def test_an_item_is_at_risk_near_its_end() -> None:
    assert not is_item_at_risk(stored_ms=0, expires_ms=1000, now_ms=800)
    assert is_item_at_risk(stored_ms=0, expires_ms=1000, now_ms=801)
