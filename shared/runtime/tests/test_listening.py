"""Silence counts only while this process can listen."""

import pytest

from pointsman_runtime.jetstream.listening import ListeningClock


@pytest.mark.parametrize(
    ("ticks", "asked", "listened"),
    [
        ([(0.0, True), (0.05, True), (0.1, True)], 0.12, 0.12),
        ([(0.0, True), (0.1, False), (5.0, False), (5.1, True)], 5.15, 0.15),
        ([(0.0, True), (60.0, True)], 60.05, 0.25),
        ([(0.0, True)], 60.0, 0.2),
        ([], 60.0, 0.0),
    ],
    ids=["ticking", "without a connection", "stopped between ticks", "stopped since the last tick", "not begun"],
)
def test_time_passes_only_while_this_process_listens(
    ticks: list[tuple[float, bool]], asked: float, listened: float
) -> None:
    clock = ListeningClock()
    for now, listening in ticks:
        clock.note_time(now, listening=listening)
    assert clock.listened_seconds(asked) == pytest.approx(listened)
