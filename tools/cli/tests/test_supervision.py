"""The life of one process, without a process."""

import pytest

from pointsman_cli.stack.supervision import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    SETTINGS_ARE_WRONG,
    STEADY_AFTER_S,
    TRIES_BEFORE_READY,
    State,
    SupervisedProcess,
    how_it_ended,
)


def _ready(life: SupervisedProcess, now: float = 0.0) -> None:
    life.record_start(now)
    life.record_readiness(None)


def test_a_process_that_crashes_again_and_again_waits_longer_each_time() -> None:
    life = SupervisedProcess("scheduler")
    delays: list[float | None] = []
    for _ in range(8):
        _ready(life)
        delays.append(life.record_end(1.0, -9))
    assert delays == [min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**n) for n in range(8)]
    assert life.state is State.CRASHED


def test_a_process_that_lived_long_is_started_again_quickly() -> None:
    life = SupervisedProcess("scheduler")
    for _ in range(5):
        _ready(life)
        life.record_end(1.0, 1)
    _ready(life, now=100.0)
    assert life.record_end(100.0 + STEADY_AFTER_S, 1) == FIRST_DELAY_S


def test_a_process_that_is_never_ready_is_given_up() -> None:
    life = SupervisedProcess("frontend")
    outcomes: list[float | None] = []
    for _ in range(TRIES_BEFORE_READY):
        life.record_start(0.0)
        outcomes.append(life.record_end(0.1, 70))
    assert outcomes[-1] is None
    assert None not in outcomes[:-1]
    assert life.state is State.GIVEN_UP
    assert life.why == "ended with exit code 70"


def test_a_process_that_was_ready_once_is_never_given_up() -> None:
    life = SupervisedProcess("frontend")
    _ready(life)
    for _ in range(20):
        assert life.record_end(0.1, 70) is not None
        life.record_start(0.0)


def test_wrong_settings_are_not_tried_twice() -> None:
    life = SupervisedProcess("frontend")
    life.record_start(0.0)
    assert life.record_end(0.1, SETTINGS_ARE_WRONG) is None
    assert "refused" in life.why


def test_only_a_change_of_readiness_is_worth_telling() -> None:
    life = SupervisedProcess("scheduler")
    life.record_start(0.0)
    assert not life.record_readiness({"bus": "bus disconnected: no server"})
    assert (life.state, life.why) == (State.STARTING, "bus disconnected: no server")
    assert life.record_readiness(None)
    assert not life.record_readiness(None)
    assert life.record_readiness({"bus": "bus disconnected: closed", "service": "draining"})
    assert (life.state, life.why) == (State.NOT_READY, "bus disconnected: closed; draining")
    assert not life.record_readiness("doesn't answer")
    assert life.record_readiness(None)


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "killed by SIGKILL"), (1, "ended with exit code 1"), (0, "ended with exit code 0")]
)
def test_an_exit_code_is_explained_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words
