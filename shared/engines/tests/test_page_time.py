"""From when on the answer of a page is late."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_engines.page_time import LATEST_S, PageTime


@given(took=st.lists(st.floats(0.0, 40.0)), shortest=st.floats(0.05, 20.0))
def test_no_answer_is_late_before_the_shortest_time_or_in_time_after_the_latest(
    took: list[float], shortest: float
) -> None:
    time = PageTime(shortest)
    for seconds in took:
        time.record_answer(seconds)
    assert shortest <= time.late_after_s <= max(shortest, LATEST_S)


@given(usual=st.floats(0.8, 5.0), jitter=st.lists(st.floats(0.9, 1.1), min_size=1, max_size=30))
def test_a_page_that_takes_its_usual_time_is_not_late(usual: float, jitter: list[float]) -> None:
    time = PageTime(0.7)
    time.record_answer(usual)
    for each in jitter:
        assert usual * each <= time.late_after_s or each > 1.0
        time.record_answer(usual * each)


def test_a_page_that_became_fast_again_is_soon_late_early_again() -> None:
    time = PageTime(0.7)
    for _ in range(10):
        time.record_answer(5.0)
    for _ in range(60):
        time.record_answer(0.01)
    assert time.late_after_s == 0.7
