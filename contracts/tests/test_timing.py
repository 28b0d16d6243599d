"""One table of times: all follow from four intervals, which must fit together."""

import pytest

from pointsman_contracts.timing import DEFAULTS, Intervals, Times, problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"beat_s": 1.0, "report_s": 2.0, "snapshot_s": 5.0, "announce_s": 10.0}, None),
        ({"beat_s": 0.0}, "beat_s: 0 s is not between 0.05 s and 60 s"),
        ({"report_s": 0.05}, "report_s: 0.05 s is not between 0.1 s and 60 s"),
        ({"snapshot_s": 0.1}, "snapshot_s: 0.1 s is not between 0.2 s and 60 s"),
        ({"announce_s": 61.0}, "announce_s: 61 s is not between 0.5 s and 60 s"),
        ({"report_s": 3.0}, "announce_s: 2 s is less than report_s (3 s); a worker must be silent before it is gone"),
    ],
)
def test_intervals_that_do_not_fit_are_named(changes: dict[str, float], words: str | None) -> None:
    assert problem(**{**DEFAULTS, **changes}) == words  # pyright: ignore[reportArgumentType] - keys as of `Intervals`


def test_a_worker_is_silent_after_three_reports_and_gone_after_three_announcements() -> None:
    times = Times(Intervals(beat_s=0.2, report_s=1.0, snapshot_s=1.0, announce_s=5.0))
    assert (times.worker_silent_s, times.worker_gone_s) == (3.0, 15.0)
    assert times.load_aged_s < times.worker_silent_s < times.load_worthless_s < times.worker_gone_s


def test_intervals_that_do_not_fit_change_nothing() -> None:
    times = Times(DEFAULTS)
    with pytest.raises(ValueError, match="beat_s"):
        times.set({**DEFAULTS, "beat_s": 0.0})
    assert times.service_silent_s == pytest.approx(0.6)
