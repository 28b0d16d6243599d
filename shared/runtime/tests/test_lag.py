"""How late a process runs, with time as an argument."""

from pathlib import Path

import pytest

from pointsman_journey.hop_budget import budget_of
from pointsman_runtime.telling.lag import (
    HALF_LIFE_S,
    MOST_SLACK_S,
    READ_EVERY_S,
    SLACK,
    UNNOTICED_S,
    LagMeter,
    Pressure,
)


def test_a_process_that_runs_in_time_allows_nothing_more() -> None:
    meter = LagMeter()
    for second in range(10):
        meter.note_lag(UNNOTICED_S, second)
    assert meter.slack_s(10) == 0.0


def test_a_lag_gives_others_more_time_and_fades() -> None:
    meter = LagMeter()
    meter.note_lag(1.0 + UNNOTICED_S, 100.0)
    assert meter.slack_s(100.0) == pytest.approx(SLACK)
    assert meter.slack_s(100.0 + HALF_LIFE_S) == pytest.approx(SLACK / 2)
    assert meter.slack_s(100.0 + 20 * HALF_LIFE_S) < 0.001


def test_a_short_lag_after_a_long_one_does_not_hide_it() -> None:
    meter = LagMeter()
    meter.note_lag(1.0 + UNNOTICED_S, 100.0)
    meter.note_lag(0.1, 100.2)
    assert meter.slack_s(100.2) > 0.9 * SLACK


def test_a_process_that_was_stopped_for_minutes_is_not_patient_for_minutes() -> None:
    meter = LagMeter()
    meter.note_lag(300.0, 300.0)
    assert meter.slack_s(300.0) == MOST_SLACK_S


def test_pressure_is_the_share_of_time_in_which_processes_waited(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    pressure = Pressure(file)

    def waited(total_us: int) -> None:
        file.write_text(f"some avg10=1.00 avg60=1.00 avg300=1.00 total={total_us}\nfull avg10=0.00 total=0\n")

    waited(5_000_000)
    assert pressure.waiting_share(10.0) == 0.0
    waited(5_000_000 + round(0.75e6 * READ_EVERY_S))
    assert pressure.waiting_share(10.0 + READ_EVERY_S) == pytest.approx(0.75)
    assert pressure.waiting_share(10.0 + 1.5 * READ_EVERY_S) == pytest.approx(0.75)
    assert pressure.waiting_share(10.0 + 3 * READ_EVERY_S) == 0.0


@pytest.mark.parametrize("text", [None, "", "some avg10=1.00", "none total=5"])
def test_where_the_kernel_tells_nothing_there_is_no_pressure(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "cpu"
    if text is not None:
        file.write_text(text)
    pressure = Pressure(file)
    assert [pressure.waiting_share(at) for at in (1.0, 3.0, 5.0)] == [0.0, 0.0, 0.0]


def test_each_further_try_may_take_longer() -> None:
    budgets = [budget_of(attempt, 0.6, 0.0) for attempt in range(1, 7)]
    assert budgets == pytest.approx([0.6, 0.6, 1.2, 2.4, 4.8, 9.6])
    assert budget_of(1000, 0.6, 0.0) < 30


def test_a_large_body_and_a_late_machine_may_take_longer() -> None:
    assert budget_of(1, 0.6, 2.0) == pytest.approx(2.6)
    assert budget_of(1, 0.6, 0.0, 4 * 2**20) == pytest.approx(2.6)
