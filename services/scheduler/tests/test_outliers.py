"""The standing of a worker after its failures and answers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_plugins.scheduling.outliers import (
    LAST_RETRY_S,
    LEAST_FAILURES,
    TRIALS,
    Peers,
    Standing,
    Tally,
)

GOOD_PEERS = Peers([0.0])


def failing(count: int, *, answers: int = 0, peers: Peers = GOOD_PEERS, apart: float = 0.1) -> Standing:
    """A standing after answers, and then failures in a row."""
    standing = Standing()
    for number in range(answers):
        standing.tally.add_results(0.0, good=1)
        standing.record_answer(0.0, -1.0 + number * 0.001, whole=True)
    for number in range(count):
        now = number * apart
        standing.record_failure("failed 500", now, now)
        if standing.may_be_outlier:
            standing.eject_if_outlier("failed 500", peers, now)
    return standing


def trial(standing: Standing, *, good: bool) -> float:
    """Send the trial when it is due, and have it answered or failed at once; returns when."""
    now = standing.retry_at
    standing.note_trial(now)
    if good:
        standing.record_answer(now, now, whole=True)
    else:
        standing.record_failure("failed 500", now, now)
    return now


@pytest.mark.parametrize("answers", [0, 1, 1000])
def test_three_failures_in_a_row_eject_a_worker_whatever_came_before(answers: int) -> None:
    assert not failing(2, answers=answers).ejected
    assert failing(3, answers=answers).ejected


def test_failures_far_apart_are_not_in_a_row() -> None:
    assert not failing(4, answers=20, apart=10.1).ejected


def test_a_share_of_failures_that_peers_do_not_have_ejects_a_worker() -> None:
    standing = Standing()
    for number in range(1, LEAST_FAILURES + 1):
        standing.tally.add_results(0.0, good=1)
        standing.record_answer(0.0, 0.0, whole=True)
        standing.record_failure("failed 500", 0.0, 0.0)
        if standing.may_be_outlier:
            standing.eject_if_outlier("failed 500", GOOD_PEERS, 0.0)
        assert standing.ejected == (number == LEAST_FAILURES), number


@given(st.integers(1, 99), st.integers(5, 50))
def test_a_worker_that_fails_in_part_stays_in_while_its_peers_fail_as_often(bad: int, failures: int) -> None:
    standing = Standing()
    standing.tally.add_results(0.0, good=round(failures * (100 - bad) / bad), bad=failures)
    assert not standing.eject_if_outlier("failed 500", Peers([bad / 100]), 0.0)


def test_a_worker_that_fails_in_part_stays_in_while_half_of_the_pool_is_out() -> None:
    standing = Standing()
    standing.tally.add_results(0.0, good=5, bad=5)
    assert not standing.eject_if_outlier("failed 500", Peers([0.0], ejected=0.5), 0.0)
    assert standing.eject_if_outlier("failed 500", Peers([0.0], ejected=0.4), 0.0)


@pytest.mark.parametrize("hung", [False, True])
def test_one_answer_to_a_trial_ends_the_ejection_of_a_worker_that_was_away(hung: bool) -> None:
    standing = Standing()
    standing.eject_worker("away", 0.0, hung=hung, trials=1)
    trial(standing, good=True)
    assert not standing.ejected
    assert standing.reason == ""


def test_a_worker_that_failed_requests_answers_several_trials_in_a_row() -> None:
    standing = failing(3)
    trial(standing, good=False)
    for _ in range(TRIALS - 1):
        trial(standing, good=True)
        assert standing.ejected
    trial(standing, good=False)
    for _ in range(TRIALS):
        assert standing.ejected
        trial(standing, good=True)
    assert not standing.ejected


def test_a_worker_that_has_just_returned_is_ejected_sooner() -> None:
    standing = failing(3)
    now = 0.0
    for _ in range(TRIALS):
        now = trial(standing, good=True)
    for number in range(1, 3):
        standing.tally.add_results(now, good=1)
        standing.record_answer(now, now, whole=True)
        standing.record_failure("failed 500", now, now)
        if standing.may_be_outlier:
            standing.eject_if_outlier("failed 500", GOOD_PEERS, now)
        assert standing.ejected == (number == 2)


@given(st.integers(0, 2000))
def test_a_worker_has_its_share_back_within_ten_seconds_of_being_good(failed_trials: int) -> None:
    standing = failing(3)
    good_from = 0.2
    for _ in range(failed_trials):
        good_from = trial(standing, good=False)
    back_at = good_from
    while standing.ejected:
        back_at = trial(standing, good=True)
    assert back_at - good_from < 10.0


def test_intervals_between_trials_double() -> None:
    standing = failing(3)
    at = [trial(standing, good=False) for _ in range(6)]
    assert [round(later - earlier, 3) for earlier, later in pairwise(at)] == [2, 4, 6, 6, 6]
    assert LAST_RETRY_S == 6


def test_requests_that_were_on_their_way_at_the_ejection_are_no_trials() -> None:
    standing = failing(3)
    due = standing.retry_at
    for _ in range(50):
        standing.record_failure("failed 500", 0.5, 0.1)
    assert standing.retry_at == due
    assert not standing.record_answer(0.6, 0.1, whole=True)
    assert standing.ejected


def test_an_answer_that_begins_is_no_cure_for_answers_that_break_off() -> None:
    standing = Standing()
    for now in (0.0, 0.1, 0.2):
        standing.tally.add_results(now, good=1)
        standing.record_answer(now, now, whole=False)
        standing.record_failure("cut_off", now, now, cut=True, begun=True)
        if standing.may_be_outlier:
            standing.eject_if_outlier("cut_off", GOOD_PEERS, now)
    assert standing.ejected
    assert standing.tally.count_results(0.2) == (0, 3)
    now = standing.retry_at
    standing.note_trial(now)
    for _ in range(TRIALS):
        standing.record_answer(now, now, whole=False)
    assert standing.ejected
    for _ in range(TRIALS):
        standing.record_answer(now, now, whole=True)
    assert not standing.ejected


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), max_size=60))
def test_a_tally_has_what_was_counted_in_the_last_five_seconds_and_nothing_older_than_ten(
    steps: list[tuple[float, bool]],
) -> None:
    tally, now, counted = Tally(), 100.0, list[tuple[float, bool]]()
    for gap, good in steps:
        now += gap
        tally.add_results(now, good=int(good), bad=int(not good))
        counted.append((now, good))
    for place, kind in enumerate((True, False)):
        found = tally.count_results(now)[place]
        least = sum(good is kind and now - at < 5.0 for at, good in counted)
        most = sum(good is kind and now - at <= 10.0 for at, good in counted)
        assert least <= found <= most
