"""Readings come faster while there is something to see; reports are bounded from both sides."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_engines.pace import Company, ReadingPace, ReportPace


def test_readings_slow_down_step_by_step_while_nothing_changes_and_speed_up_at_once() -> None:
    pace = ReadingPace(busy_s=0.05, idle_s=0.2)
    gaps = [0.2]
    for changed in (True, False, False, False, True):
        gaps.append(pace.next_gap(gaps[-1], changed=changed))
    assert gaps[1:] == [0.05, 0.1, 0.2, 0.2, 0.05]


@pytest.mark.parametrize(("engines", "longest"), [(1, 0.2), (20, 0.2), (50, 0.5), (100, 1.0), (1000, 1.0)])
def test_engines_at_rest_are_read_less_often_the_more_there_are_and_those_at_work_are_not(
    engines: int, longest: float
) -> None:
    company = Company()
    company.engines = engines
    pace = ReadingPace(busy_s=0.05, idle_s=0.2, company=company)
    rest = work = 0.05
    for _ in range(10):
        rest = pace.next_gap(rest, changed=False, resting=True)
        work = pace.next_gap(work, changed=False, resting=False)
    assert (rest, work) == (pytest.approx(longest), 0.2)
    assert pace.next_gap(rest, changed=True, resting=True) == 0.05


def test_a_change_is_published_after_the_shortest_gap_and_a_new_state_at_once() -> None:
    pace = ReportPace(0.05, 0.4)
    assert pace.due_in(10.0) == 0.0
    pace.note_report(10.0)
    assert round(pace.due_in(10.0), 6) == 0.4
    pace.note_change()
    assert round(pace.due_in(10.01), 6) == 0.04
    assert pace.due_in(10.06) == 0.0
    pace.note_report(10.06)
    pace.note_change(urgent=True)
    assert pace.due_in(10.061) == 0.0
    pace.note_report(10.061)
    assert round(pace.due_in(10.061), 6) == 0.4


Change = tuple[float, bool, bool]


@pytest.mark.requirement("S1-9")
@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.booleans(), st.booleans()), max_size=60))
def test_reports_of_a_state_that_stays_are_at_most_twenty_a_second_and_never_400_ms_apart(
    changes: list[Change],
) -> None:
    pace = ReportPace(0.05, 0.4)
    now, told = 0.0, [0.0]
    pace.note_report(0.0)
    for wait, changed, _ in changes:
        until = now + wait
        while (due := now + pace.due_in(now)) <= until:
            now = due
            pace.note_report(now)
            told.append(now)
        now = until
        if changed:
            pace.note_change()
    gaps = [later - earlier for earlier, later in itertools.pairwise(told)]
    assert all(0.05 - 1e-9 <= gap <= 0.4 + 1e-9 for gap in gaps)
