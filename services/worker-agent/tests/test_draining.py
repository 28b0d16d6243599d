"""An engine has drained when it was idle for long enough, or when no request waits any longer."""

import pytest

from pointsman_worker_agent.domain.draining import Draining


@pytest.mark.parametrize(
    ("looks", "finished_at"),
    [
        ([(0.0, True), (0.5, True), (1.0, True)], 1.0),
        ([(0.0, False), (5.0, True), (5.9, True), (6.0, True)], 6.0),
        ([(0.0, True), (0.9, False), (1.0, True), (1.9, True), (2.0, True)], 2.0),
        ([(0.0, False), (100.0, False)], None),
    ],
)
def test_an_engine_has_drained_after_a_second_without_a_request(
    looks: list[tuple[float, bool]], finished_at: float | None
) -> None:
    draining = Draining(began=0.0, timeout_s=30.0)
    finished = [now for now, idle in looks if draining.is_finished(now, idle=idle)]
    assert finished == ([] if finished_at is None else [finished_at])


def test_no_wait_is_longer_than_the_timeout() -> None:
    draining = Draining(began=10.0, timeout_s=30.0)
    assert not draining.is_overdue(39.9)
    assert draining.is_overdue(40.0)
